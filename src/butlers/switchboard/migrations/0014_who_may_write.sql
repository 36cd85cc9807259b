-- Who wrote in and was not served, and the codes by which strangers are let in.

CREATE TABLE {schema}.refused_senders (
    id           uuid PRIMARY KEY,
    channel      text        NOT NULL,
    endpoint     text        NOT NULL,
    sender       text        NOT NULL,
    display_name text,
    reason       text        NOT NULL,
    messages     bigint      NOT NULL,              -- so many; what they said is not kept
    wrong_codes  integer     NOT NULL DEFAULT 0,    -- pairing codes tried in vain
    last_event   text        NOT NULL,              -- the dedupe key of the last one
    first_at     timestamptz NOT NULL,
    last_at      timestamptz NOT NULL,
    UNIQUE (channel, endpoint, sender)
);
CREATE INDEX refused_senders_age ON {schema}.refused_senders (last_at);

CREATE TABLE {schema}.sender_pairings (
    id           uuid PRIMARY KEY,
    kind         text        NOT NULL CHECK (kind IN ('sender', 'owner')),
    channel      text        NOT NULL,
    endpoint     text,
    sender       text,                              -- of an owner's code: who used it
    display_name text,
    code         text        NOT NULL UNIQUE,
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    told_at      timestamptz,                       -- when Messenger had the message with the code
    used_at      timestamptz,
    used_by      text
);
-- A stranger gets one code, ever.
CREATE UNIQUE INDEX sender_pairings_once ON {schema}.sender_pairings (channel, endpoint, sender) WHERE kind = 'sender';
CREATE UNIQUE INDEX sender_pairings_owner ON {schema}.sender_pairings (channel)
    WHERE kind = 'owner' AND used_at IS NULL;
CREATE INDEX sender_pairings_recent ON {schema}.sender_pairings (created_at) WHERE kind = 'sender';
