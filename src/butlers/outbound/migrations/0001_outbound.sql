-- Who may write to whom, what people want, and what is to leave when.

CREATE TABLE {schema}.entitlements (
    subject_id text        NOT NULL,
    permission text        NOT NULL,      -- messages:{send|receive|*}:{channel|*}
    granted_at timestamptz NOT NULL,
    PRIMARY KEY (subject_id, permission)
);

CREATE TABLE {schema}.preferences (
    subject_id text PRIMARY KEY,
    document   jsonb       NOT NULL,      -- notifications.matrix[event][channel], quietHours
    updated_at timestamptz NOT NULL
);

-- The system's own defaults have the scope 'system', an organization's 'organization:<id>'.
CREATE TABLE {schema}.defaults (
    scope      text PRIMARY KEY,
    document   jsonb       NOT NULL,
    updated_at timestamptz NOT NULL
);

CREATE TABLE {schema}.messages (
    id         uuid PRIMARY KEY,
    sender_id  text        NOT NULL,
    document   jsonb       NOT NULL,      -- without its recipients
    created_at timestamptz NOT NULL
);

-- One row for one message to one person: the queue.
CREATE TABLE {schema}.scheduled_messages (
    dedupe_key   text PRIMARY KEY,        -- <message>:<recipient>; the idempotency key all the way to the provider
    message_id   uuid        NOT NULL,
    recipient_id text        NOT NULL,
    sender_id    text        NOT NULL,
    channel      text        NOT NULL,
    scheduled_at timestamptz NOT NULL,
    priority     text        NOT NULL CHECK (priority IN ('urgent', 'high', 'normal', 'low')),
    state        text        NOT NULL DEFAULT 'queued' CHECK (state IN (
                     'queued', 'in_flight', 'acknowledged', 'dead_lettered')),
    attempts     integer     NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL,
    UNIQUE (message_id, recipient_id)
);

CREATE INDEX scheduled_messages_due ON {schema}.scheduled_messages (scheduled_at) WHERE state = 'queued';
CREATE INDEX scheduled_messages_of_sender ON {schema}.scheduled_messages (sender_id, scheduled_at);

CREATE TABLE {schema}.blocked_recipients (
    message_id   uuid        NOT NULL,
    recipient_id text        NOT NULL,
    reason       text        NOT NULL CHECK (reason IN (
                     'no-channel', 'sender-permission', 'recipient-permission', 'throttled')),
    detail       text        NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (message_id, recipient_id)
);
