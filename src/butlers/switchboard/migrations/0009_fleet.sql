-- The connectors: who is there, what they reported, what that adds up to, and the past they are asked to fetch.

CREATE TABLE {schema}.connector_registry (
    connector_type        text             NOT NULL,
    endpoint_identity     text             NOT NULL,
    principal             text             NOT NULL,    -- who registered it: nobody else may speak for it
    instance_id           uuid             NOT NULL,    -- one per process
    version               text,
    state                 text             NOT NULL CHECK (state IN ('healthy', 'degraded', 'error')),
    error_message         text,
    uptime_s              double precision NOT NULL,
    first_seen_at         timestamptz      NOT NULL,
    last_heartbeat_at     timestamptz      NOT NULL,
    registered_via        text             NOT NULL DEFAULT 'self',
    messages_ingested     bigint           NOT NULL,    -- these five: since that process started
    messages_failed       bigint           NOT NULL,
    source_api_calls      bigint           NOT NULL,
    checkpoint_saves      bigint           NOT NULL,
    dedupe_accepted       bigint           NOT NULL,
    checkpoint_cursor     text,
    checkpoint_updated_at timestamptz,
    capabilities          jsonb,                        -- NULL: it does not say
    PRIMARY KEY (connector_type, endpoint_identity)
);

CREATE TABLE {schema}.connector_heartbeat_log (
    id                uuid             NOT NULL,
    connector_type    text             NOT NULL,
    endpoint_identity text             NOT NULL,
    instance_id       uuid             NOT NULL,
    state             text             NOT NULL,
    error_message     text,
    uptime_s          double precision NOT NULL,
    messages_ingested bigint           NOT NULL,
    messages_failed   bigint           NOT NULL,
    source_api_calls  bigint           NOT NULL,
    checkpoint_saves  bigint           NOT NULL,
    dedupe_accepted   bigint           NOT NULL,
    received_at       timestamptz      NOT NULL,
    sent_at           timestamptz      NOT NULL,        -- by the connector's own clock
    PRIMARY KEY (received_at, id)
) PARTITION BY RANGE (received_at);

CREATE INDEX connector_heartbeat_log_of_instance ON {schema}.connector_heartbeat_log
    (connector_type, endpoint_identity, instance_id, received_at DESC);

CREATE TABLE {schema}.connector_stats_hourly (
    connector_type    text        NOT NULL,
    endpoint_identity text        NOT NULL,
    hour              timestamptz NOT NULL,
    messages_ingested bigint      NOT NULL,
    messages_failed   bigint      NOT NULL,
    source_api_calls  bigint      NOT NULL,
    dedupe_accepted   bigint      NOT NULL,
    heartbeat_count   bigint      NOT NULL,
    healthy_count     bigint      NOT NULL,
    degraded_count    bigint      NOT NULL,
    error_count       bigint      NOT NULL,
    PRIMARY KEY (connector_type, endpoint_identity, hour)
);

CREATE INDEX connector_stats_hourly_by_hour ON {schema}.connector_stats_hourly (hour);

CREATE TABLE {schema}.connector_stats_daily (
    connector_type    text         NOT NULL,
    endpoint_identity text         NOT NULL,
    day               date         NOT NULL,            -- in UTC
    messages_ingested bigint       NOT NULL,
    messages_failed   bigint       NOT NULL,
    source_api_calls  bigint       NOT NULL,
    dedupe_accepted   bigint       NOT NULL,
    heartbeat_count   bigint       NOT NULL,
    healthy_count     bigint       NOT NULL,
    degraded_count    bigint       NOT NULL,
    error_count       bigint       NOT NULL,
    uptime_pct        numeric(5,2),                     -- NULL: no heartbeat, so nobody knows
    PRIMARY KEY (connector_type, endpoint_identity, day)
);

CREATE INDEX connector_stats_daily_by_day ON {schema}.connector_stats_daily (day);

CREATE TABLE {schema}.connector_fanout_daily (
    source_channel           text   NOT NULL,
    source_endpoint_identity text   NOT NULL,
    target_butler            text   NOT NULL,
    day                      date   NOT NULL,           -- in UTC, when the messages came
    message_count            bigint NOT NULL,
    PRIMARY KEY (source_channel, source_endpoint_identity, target_butler, day)
);

CREATE INDEX connector_fanout_daily_by_day ON {schema}.connector_fanout_daily (day);

CREATE TABLE {schema}.backfill_jobs (
    job_id               uuid        PRIMARY KEY,
    connector_type       text        NOT NULL,
    endpoint_identity    text        NOT NULL,
    target_categories    jsonb       NOT NULL,
    date_from            date        NOT NULL,
    date_to              date        NOT NULL,          -- included
    rate_limit_per_hour  integer     NOT NULL DEFAULT 100,
    daily_cost_cap_cents integer     NOT NULL DEFAULT 500,
    status               text        NOT NULL DEFAULT 'pending' CHECK (status IN
                         ('pending', 'active', 'paused', 'completed', 'cancelled', 'cost_capped', 'error')),
    cursor               text,                          -- the connector's own: where it goes on
    rows_processed       bigint      NOT NULL DEFAULT 0,
    rows_skipped         bigint      NOT NULL DEFAULT 0,
    cost_spent_cents     bigint      NOT NULL DEFAULT 0,
    error                text,
    created_by           text        NOT NULL,
    created_at           timestamptz NOT NULL,
    started_at           timestamptz,
    progress_at          timestamptz,                   -- assigned or reported on last
    completed_at         timestamptz,
    updated_at           timestamptz NOT NULL
);

CREATE INDEX backfill_jobs_recent ON {schema}.backfill_jobs (created_at DESC, job_id DESC);
CREATE INDEX backfill_jobs_open ON {schema}.backfill_jobs (connector_type, endpoint_identity, created_at)
    WHERE status IN ('pending', 'active');

CREATE TABLE {schema}.backfill_spending (
    job_id      uuid   NOT NULL REFERENCES {schema}.backfill_jobs,
    day         date   NOT NULL,                        -- in UTC
    spent_cents bigint NOT NULL,
    PRIMARY KEY (job_id, day)
);
