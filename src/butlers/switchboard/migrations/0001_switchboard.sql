-- Everything that came in, what became of it, and who can take it.

-- A unique key cannot live on the partitioned table, so deduplication has a table of its own.
CREATE TABLE {schema}.ingress_dedupe (
    dedupe_key  text PRIMARY KEY,
    request_id  uuid        NOT NULL,
    received_at timestamptz NOT NULL,
    strategy    text        NOT NULL CHECK (strategy IN ('event', 'idempotency_key', 'content'))
);

CREATE INDEX ingress_dedupe_age ON {schema}.ingress_dedupe (received_at);

CREATE TABLE {schema}.message_inbox (
    request_id        uuid        NOT NULL,
    received_at       timestamptz NOT NULL,
    request_context   jsonb       NOT NULL,
    raw_payload       jsonb,
    normalized_text   text        NOT NULL,
    attachments       jsonb       NOT NULL DEFAULT '[]',
    policy_tier       text        NOT NULL,
    pinned_target     text,
    dedupe_key        text        NOT NULL,
    submitted_by      text        NOT NULL,         -- the authenticated caller
    routing_output    jsonb,
    dispatch_outcomes jsonb,
    aggregated_reply  jsonb,
    lifecycle_state   text        NOT NULL DEFAULT 'accepted'
                      CHECK (lifecycle_state IN ('accepted', 'progress', 'parsed', 'errored')),
    lifecycle_error   jsonb,
    schema_version    text        NOT NULL,
    prompt_version    text,
    model_version     text,
    claim_token       uuid,
    claimed_by        text,
    lease_expires_at  timestamptz,
    attempts          integer     NOT NULL DEFAULT 0,
    not_before        timestamptz,                  -- put off: nobody could take it yet
    final_state_at    timestamptz,
    updated_at        timestamptz NOT NULL,
    PRIMARY KEY (received_at, request_id)
) PARTITION BY RANGE (received_at);

CREATE INDEX message_inbox_by_request ON {schema}.message_inbox (request_id);
CREATE INDEX message_inbox_recent ON {schema}.message_inbox (received_at DESC);
CREATE INDEX message_inbox_open ON {schema}.message_inbox (received_at)
    WHERE lifecycle_state IN ('accepted', 'progress');

CREATE TABLE {schema}.butler_registry (
    name                   text PRIMARY KEY,
    endpoint_url           text        NOT NULL,
    transport              text        NOT NULL,
    description            text        NOT NULL,
    triggers               jsonb       NOT NULL DEFAULT '[]',
    required_information   jsonb       NOT NULL DEFAULT '[]',
    capabilities           jsonb       NOT NULL DEFAULT '[]',   -- the tools it offers
    modules                jsonb       NOT NULL DEFAULT '[]',
    route_timeout_s        double precision NOT NULL DEFAULT 60,
    last_seen_at           timestamptz NOT NULL,
    registered_at          timestamptz NOT NULL,
    eligibility_state      text        NOT NULL DEFAULT 'active'
                           CHECK (eligibility_state IN ('active', 'stale', 'quarantined')),
    liveness_ttl_seconds   integer     NOT NULL DEFAULT 300,
    quarantined_at         timestamptz,
    quarantine_reason      text,
    route_contract_min     text        NOT NULL DEFAULT 'route.v1',
    route_contract_max     text        NOT NULL DEFAULT 'route.v1',
    eligibility_updated_at timestamptz NOT NULL
);

CREATE TABLE {schema}.butler_eligibility_log (
    id          uuid PRIMARY KEY,
    butler      text        NOT NULL,
    previous    text,
    new         text        NOT NULL,
    reason      text        NOT NULL,
    observed_at timestamptz NOT NULL
);

CREATE TABLE {schema}.routing_log (
    id             uuid PRIMARY KEY,
    request_id     uuid        NOT NULL,
    segment_id     text        NOT NULL,
    source_channel text        NOT NULL,
    target_butler  text        NOT NULL,
    tool_name      text        NOT NULL DEFAULT 'route.execute',
    success        boolean     NOT NULL,
    duration_ms    integer     NOT NULL,
    error_class    text,
    error          text,
    router         text        NOT NULL,
    confidence     double precision,
    prompt_version text,
    model_version  text,
    created_at     timestamptz NOT NULL
);

CREATE INDEX routing_log_of_request ON {schema}.routing_log (request_id);
CREATE INDEX routing_log_recent ON {schema}.routing_log (created_at DESC);

CREATE TABLE {schema}.notifications (
    id            uuid PRIMARY KEY,
    request_id    uuid,
    source_butler text        NOT NULL,
    channel       text        NOT NULL,
    recipient     text,
    message       text        NOT NULL,
    metadata      jsonb       NOT NULL DEFAULT '{}',
    status        text        NOT NULL CHECK (status IN ('pending', 'sent', 'failed', 'read')),
    error         text,
    trace_id      text,
    created_at    timestamptz NOT NULL
);

CREATE INDEX notifications_of_request ON {schema}.notifications (request_id);
CREATE INDEX notifications_recent ON {schema}.notifications (created_at DESC);
