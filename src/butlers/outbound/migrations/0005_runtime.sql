-- What becomes of a message to a person after it was decided: states, attempts, history, digests.

ALTER TABLE {schema}.scheduled_messages DROP CONSTRAINT scheduled_messages_state_check;
DROP INDEX {schema}.scheduled_messages_due;

ALTER TABLE {schema}.scheduled_messages
    ALTER COLUMN state SET DEFAULT 'planned',
    ADD COLUMN sends           integer     NOT NULL DEFAULT 0,     -- attempts on all channels; numbers the next one
    ADD COLUMN failed_channels text[]      NOT NULL DEFAULT '{}',
    ADD COLUMN detail          text        NOT NULL DEFAULT '',    -- the rule that decided last
    ADD COLUMN reason          text,                               -- of an end that is no delivery
    ADD COLUMN delivery_id     uuid,                               -- Messenger's, of the last attempt
    ADD COLUMN digest_id       uuid,                               -- the digest that carries it
    ADD COLUMN is_digest       boolean     NOT NULL DEFAULT false,
    ADD COLUMN waits_for       text        NOT NULL DEFAULT '',    -- quiet, throttle
    ADD COLUMN repeats         integer     NOT NULL DEFAULT 0,     -- how often it was sent again
    ADD COLUMN acknowledged_at timestamptz,
    ADD COLUMN queued_at       timestamptz,
    ADD COLUMN updated_at      timestamptz,
    ADD COLUMN ended_at        timestamptz;

-- Nothing took rows from this table before. What was planned long ago is too late, the rest is sent when it is due.
UPDATE {schema}.scheduled_messages
SET state = CASE WHEN scheduled_at < now() - interval '1 day' THEN 'expired' ELSE 'planned' END;

ALTER TABLE {schema}.scheduled_messages ADD CONSTRAINT scheduled_messages_state_check CHECK (state IN (
    'planned', 'queued', 'sending', 'delivered', 'digested', 'blocked', 'expired', 'dead_lettered', 'cancelled'));

CREATE INDEX scheduled_messages_planned ON {schema}.scheduled_messages (scheduled_at) WHERE state = 'planned';
CREATE INDEX scheduled_messages_open ON {schema}.scheduled_messages (updated_at) WHERE state IN ('queued', 'sending');
CREATE INDEX scheduled_messages_of_recipient ON {schema}.scheduled_messages (recipient_id, scheduled_at DESC);
CREATE INDEX scheduled_messages_created ON {schema}.scheduled_messages (created_at);
CREATE INDEX scheduled_messages_of_digest ON {schema}.scheduled_messages (digest_id) WHERE digest_id IS NOT NULL;

ALTER TABLE {schema}.messages
    ADD COLUMN conversation_id text,
    ADD COLUMN event_type      text;
UPDATE {schema}.messages SET conversation_id = document->>'conversation_id', event_type = document->'metadata'->>'event';
CREATE INDEX messages_of_conversation ON {schema}.messages (conversation_id, created_at) WHERE conversation_id IS NOT NULL;
CREATE INDEX messages_of_sender ON {schema}.messages (sender_id, created_at DESC, id DESC);
CREATE INDEX messages_newest ON {schema}.messages (created_at DESC, id DESC);

ALTER TABLE {schema}.blocked_recipients DROP CONSTRAINT blocked_recipients_reason_check;
ALTER TABLE {schema}.blocked_recipients ADD CONSTRAINT blocked_recipients_reason_check CHECK (reason IN (
    'no-channel', 'sender-permission', 'recipient-permission', 'queue-error', 'throttled'));

CREATE INDEX blocked_recipients_of_person ON {schema}.blocked_recipients (recipient_id, created_at DESC);
CREATE INDEX blocked_recipients_created ON {schema}.blocked_recipients (created_at);

-- One hand-over to Switchboard. What has started counts against the throttle of its recipient and channel.
CREATE TABLE {schema}.attempts (
    dedupe_key   text        NOT NULL REFERENCES {schema}.scheduled_messages (dedupe_key) ON DELETE CASCADE,
    number       integer     NOT NULL,
    recipient_id text        NOT NULL,
    channel      text        NOT NULL,
    started_at   timestamptz NOT NULL,
    ended_at     timestamptz,
    outcome      text,                                             -- delivered, failed
    error_class  text,
    error        text,
    delivery_id  uuid,
    PRIMARY KEY (dedupe_key, number)
);

CREATE INDEX attempts_of_recipient ON {schema}.attempts (recipient_id, channel, started_at);

-- Each change of a message's state, in order.
CREATE TABLE {schema}.message_events (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dedupe_key text        NOT NULL REFERENCES {schema}.scheduled_messages (dedupe_key) ON DELETE CASCADE,
    state      text        NOT NULL,
    channel    text        NOT NULL,
    detail     text        NOT NULL,
    at         timestamptz NOT NULL
);

CREATE INDEX message_events_of_key ON {schema}.message_events (dedupe_key, id);
