-- What was asked to leave, every attempt at it, and what the providers said.

CREATE TABLE {schema}.delivery_requests (
    id                     uuid PRIMARY KEY,
    idempotency_key        text        NOT NULL UNIQUE,
    request_id             uuid,
    origin_butler          text        NOT NULL,
    channel                text        NOT NULL,
    identity_scope         text        NOT NULL DEFAULT 'bot',
    intent                 text        NOT NULL,
    target_identity        text        NOT NULL,
    ordering_key           text        NOT NULL,    -- one delivery at a time per conversation, oldest first
    message                text        NOT NULL,    -- as it is sent, origin mark included
    subject                text,
    envelope               jsonb       NOT NULL,
    source_event           jsonb,                   -- what the answered message was, from Switchboard's record
    priority               text        NOT NULL DEFAULT 'normal',
    not_after              timestamptz,
    duplicate_detection    boolean     NOT NULL DEFAULT true,
    status                 text        NOT NULL DEFAULT 'pending' CHECK (status IN (
                               'pending', 'in_progress', 'awaiting_retry', 'delivered', 'failed', 'dead_lettered',
                               'uncertain', 'expired', 'pending_approval', 'pending_missing_identifier')),
    attempts               integer     NOT NULL DEFAULT 0,
    next_attempt_at        timestamptz NOT NULL,
    claim_token            uuid,
    claimed_by             text,
    lease_expires_at       timestamptz,
    terminal_error_class   text,
    terminal_error_message text,
    terminal_retryable     boolean,
    created_at             timestamptz NOT NULL,
    updated_at             timestamptz NOT NULL,
    terminal_at            timestamptz
);

CREATE INDEX delivery_requests_due ON {schema}.delivery_requests (next_attempt_at)
    WHERE status IN ('pending', 'awaiting_retry');
CREATE INDEX delivery_requests_order ON {schema}.delivery_requests (ordering_key, id)
    WHERE status IN ('pending', 'in_progress', 'awaiting_retry');
CREATE INDEX delivery_requests_claimed ON {schema}.delivery_requests (lease_expires_at) WHERE status = 'in_progress';
CREATE INDEX delivery_requests_of_request ON {schema}.delivery_requests (request_id);
CREATE INDEX delivery_requests_recent ON {schema}.delivery_requests (created_at DESC);

CREATE TABLE {schema}.delivery_attempts (
    id                uuid PRIMARY KEY,
    delivery_id       uuid        NOT NULL REFERENCES {schema}.delivery_requests (id),
    attempt_number    integer     NOT NULL,
    worker            text        NOT NULL,         -- names the wire log that holds the evidence
    started_at        timestamptz NOT NULL,
    completed_at      timestamptz,
    latency_ms        integer,
    outcome           text CHECK (outcome IN ('sent', 'rejected', 'failed', 'lost')),
    certainty         text CHECK (certainty IN ('sent', 'not_sent', 'uncertain')),
    error_class       text,
    error_message     text,
    retryable         boolean,
    provider_response jsonb,
    UNIQUE (delivery_id, attempt_number)
);

CREATE TABLE {schema}.delivery_receipts (
    id                   uuid PRIMARY KEY,
    delivery_id          uuid        NOT NULL REFERENCES {schema}.delivery_requests (id),
    part                 integer     NOT NULL DEFAULT 1,
    provider_delivery_id text        NOT NULL,
    receipt_type         text        NOT NULL CHECK (receipt_type IN ('sent', 'delivered', 'read', 'bounced')),
    received_at          timestamptz NOT NULL,
    metadata             jsonb       NOT NULL DEFAULT '{}',
    UNIQUE (delivery_id, part, receipt_type)
);
