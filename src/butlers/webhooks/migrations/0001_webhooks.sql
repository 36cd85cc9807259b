-- The endpoints of subscribers, and what is to be told to each.

CREATE TABLE {schema}.endpoints (
    id               uuid PRIMARY KEY,
    url              text        NOT NULL,
    description      text        NOT NULL DEFAULT '',
    event_types      text[]      NOT NULL,       -- delivery.delivered, delivery.*, *
    secret           text        NOT NULL,       -- whsec_ and base64
    old_secret       text,                       -- signs beside the new one until the receiver has changed over
    old_secret_until timestamptz,
    enabled          boolean     NOT NULL DEFAULT true,
    disabled_reason  text,
    failing_since    timestamptz,                -- the first failure after the last success
    delivered_at     timestamptz,                -- the last success, to the minute
    created_by       text        NOT NULL,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    CHECK (enabled = (disabled_reason IS NULL)),
    CHECK ((old_secret IS NULL) = (old_secret_until IS NULL))
);

-- One event for one endpoint. The id is the `webhook-id` of every attempt.
CREATE TABLE {schema}.deliveries (
    id               uuid PRIMARY KEY,
    endpoint_id      uuid        NOT NULL REFERENCES {schema}.endpoints (id) ON DELETE CASCADE,
    event_id         text        NOT NULL,
    event_type       text        NOT NULL,
    payload          jsonb       NOT NULL,       -- the body of the request: type, timestamp, data
    state            text        NOT NULL DEFAULT 'pending' CHECK (state IN (
                         'pending', 'sending', 'delivered', 'dead_lettered')),
    attempts         integer     NOT NULL DEFAULT 0,
    next_attempt_at  timestamptz NOT NULL,
    claim_token      uuid,
    claimed_by       text,
    lease_expires_at timestamptz,
    last_status      integer,                    -- the HTTP status of the last answer
    last_error       text,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    UNIQUE (endpoint_id, event_id)
);

CREATE INDEX deliveries_due ON {schema}.deliveries (endpoint_id, next_attempt_at, id)
    WHERE state IN ('pending', 'sending');
CREATE INDEX deliveries_under_way ON {schema}.deliveries (endpoint_id) WHERE state = 'sending';
CREATE INDEX deliveries_of_endpoint ON {schema}.deliveries (endpoint_id, created_at DESC, id DESC);
CREATE INDEX deliveries_ended ON {schema}.deliveries (updated_at) WHERE state IN ('delivered', 'dead_lettered');
