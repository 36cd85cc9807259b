-- What every butler keeps: routed work, sessions, state and schedules.

CREATE TABLE {schema}.route_inbox (
    id               uuid PRIMARY KEY,
    request_id       uuid        NOT NULL,
    subrequest_id    uuid        NOT NULL,
    segment_id       text        NOT NULL,
    envelope         jsonb       NOT NULL,
    lifecycle_state  text        NOT NULL DEFAULT 'accepted'
                     CHECK (lifecycle_state IN ('accepted', 'processing', 'processed', 'errored')),
    response         jsonb,                  -- result or error, as it was answered
    claim_token      uuid,                   -- fencing: only its holder may write the outcome
    claimed_by       text,
    claimed_at       timestamptz,
    lease_expires_at timestamptz,
    attempts         integer     NOT NULL DEFAULT 0,
    error            text,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    UNIQUE (request_id, segment_id)
);

CREATE INDEX route_inbox_open ON {schema}.route_inbox (created_at)
    WHERE lifecycle_state IN ('accepted', 'processing');

CREATE TABLE {schema}.sessions (
    id              uuid PRIMARY KEY,
    trigger_source  text        NOT NULL,    -- route, schedule:<name>, trigger
    request_id      uuid,
    runtime         text        NOT NULL,
    model           text,
    status          text        NOT NULL CHECK (status IN ('running', 'completed', 'failed')),
    result          text,
    error_class     text,
    error           text,
    input_tokens    integer,
    output_tokens   integer,
    duration_ms     integer,
    started_at      timestamptz NOT NULL,
    ended_at        timestamptz
);

CREATE INDEX sessions_recent ON {schema}.sessions (started_at DESC);
CREATE INDEX sessions_of_request ON {schema}.sessions (request_id);

CREATE TABLE {schema}.state (
    key        text PRIMARY KEY,
    value      jsonb       NOT NULL,
    updated_at timestamptz NOT NULL
);

CREATE TABLE {schema}.scheduled_tasks (
    name          text PRIMARY KEY,
    cron          text,                      -- NULL: once, at next_run_at
    dispatch_mode text        NOT NULL CHECK (dispatch_mode IN ('job', 'prompt')),
    job_name      text,
    job_args      jsonb       NOT NULL DEFAULT '{}',
    prompt        text,
    enabled       boolean     NOT NULL DEFAULT true,
    source        text        NOT NULL CHECK (source IN ('toml', 'tool')),
    next_run_at   timestamptz,
    last_run_at   timestamptz,
    last_result   jsonb,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL
);

CREATE INDEX scheduled_tasks_due ON {schema}.scheduled_tasks (next_run_at) WHERE enabled;
