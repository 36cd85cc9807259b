-- What was asked of a model, which version of prompt and model is on trial, and what was learned about people.

CREATE TABLE {schema}.routing_model_calls (
    id             uuid PRIMARY KEY,
    request_id     uuid,                            -- NULL: somebody only asked
    rollout_key    text        NOT NULL,            -- the version on trial, '' for the one in general use
    prompt_version text        NOT NULL,
    model_version  text        NOT NULL,
    outcome        text        NOT NULL CHECK (outcome IN ('answered', 'unsure', 'failed')),
    error_class    text,
    input_tokens   bigint,                          -- NULL: the program did not say
    output_tokens  bigint,
    duration_ms    integer     NOT NULL,
    created_at     timestamptz NOT NULL
);

CREATE INDEX routing_model_calls_of_version ON {schema}.routing_model_calls (rollout_key, created_at DESC);

CREATE TABLE {schema}.routing_rollout (
    rollout_key text PRIMARY KEY,
    state       text        NOT NULL CHECK (state IN ('active', 'rolled_back')),
    judged_from timestamptz NOT NULL,               -- calls before this do not count: a resumed trial starts anew
    changed_by  text        NOT NULL,               -- 'rule', or who decided
    reason      text        NOT NULL,
    changed_at  timestamptz NOT NULL
);

CREATE TABLE {schema}.routing_rollout_log (
    id          uuid PRIMARY KEY,
    rollout_key text        NOT NULL,
    previous    text,
    new         text        NOT NULL,
    changed_by  text        NOT NULL,
    reason      text        NOT NULL,
    figures     jsonb,                              -- what the rule saw
    changed_at  timestamptz NOT NULL
);

CREATE INDEX routing_rollout_log_recent ON {schema}.routing_rollout_log (changed_at DESC);

-- One line per request that was looked through, so that none is looked through twice.
CREATE TABLE {schema}.extraction_runs (
    request_id uuid PRIMARY KEY,
    extractor  text        NOT NULL,
    found      integer     NOT NULL,
    created_at timestamptz NOT NULL
);

CREATE TABLE {schema}.extraction_queue (
    id             uuid PRIMARY KEY,
    request_id     uuid        NOT NULL,
    position       integer     NOT NULL,
    signal_type    text        NOT NULL CHECK (signal_type IN
                   ('contact', 'interaction', 'life_event', 'date', 'fact', 'sentiment', 'gift', 'loan')),
    confidence     double precision NOT NULL,
    contact_hint   text,
    data           jsonb       NOT NULL,
    preview        text        NOT NULL CHECK (length(preview) <= 200),
    sender         text        NOT NULL,
    source_channel text        NOT NULL,
    status         text        NOT NULL CHECK (status IN ('pending', 'confirmed', 'dismissed', 'expired')),
    decided_by     text,                            -- 'rule', or who decided
    decided_at     timestamptz,
    dispatched_at  timestamptz,                     -- when the relationship butler had recorded it
    attempts       integer     NOT NULL DEFAULT 0,
    not_before     timestamptz,
    expires_at     timestamptz NOT NULL,
    created_at     timestamptz NOT NULL,
    UNIQUE (request_id, position)
);

CREATE INDEX extraction_queue_recent ON {schema}.extraction_queue (created_at DESC, id DESC);
CREATE INDEX extraction_queue_pending ON {schema}.extraction_queue (expires_at) WHERE status = 'pending';
CREATE INDEX extraction_queue_undispatched ON {schema}.extraction_queue (created_at)
    WHERE status = 'confirmed' AND dispatched_at IS NULL;

CREATE TABLE {schema}.extraction_log (
    id            uuid PRIMARY KEY,
    request_id    uuid        NOT NULL,
    extraction_id uuid,
    event         text        NOT NULL CHECK (event IN
                  ('queued', 'dispatched', 'dispatch_failed', 'confirmed', 'dismissed', 'expired')),
    signal_type   text        NOT NULL,
    confidence    double precision NOT NULL,
    actor         text        NOT NULL,             -- the extractor, 'rule', 'relationship', or who decided
    preview       text        NOT NULL CHECK (length(preview) <= 200),
    created_at    timestamptz NOT NULL
);

CREATE INDEX extraction_log_of_request ON {schema}.extraction_log (request_id);
CREATE INDEX extraction_log_recent ON {schema}.extraction_log (created_at DESC);
