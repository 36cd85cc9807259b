-- Every run of a job: what it was asked, what it did, and how it ended.

CREATE TABLE {schema}.pipeline_runs (
    run_id       uuid PRIMARY KEY,
    job          text        NOT NULL,
    window_start timestamptz NOT NULL,
    window_end   timestamptz NOT NULL,
    arguments    jsonb       NOT NULL DEFAULT '{}',
    outcome      text        NOT NULL DEFAULT 'running'
                 CHECK (outcome IN ('running', 'succeeded', 'dissatisfied', 'failed', 'died')),
    rows_in      bigint,
    rows_out     bigint,
    details      jsonb       NOT NULL DEFAULT '{}',
    error        jsonb,                                 -- class and message
    started_at   timestamptz NOT NULL,
    ended_at     timestamptz,
    duration_ms  bigint,
    spark_app_id text,                                  -- NULL: Spark did not start
    master       text        NOT NULL,                  -- or the address of a Spark Connect server
    host         text        NOT NULL,
    pid          integer     NOT NULL,
    CHECK ((outcome = 'running') = (ended_at IS NULL))
);

CREATE INDEX pipeline_runs_recent ON {schema}.pipeline_runs (started_at DESC, run_id DESC);
CREATE INDEX pipeline_runs_open ON {schema}.pipeline_runs (run_id) WHERE outcome = 'running';
