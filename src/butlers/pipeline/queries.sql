-- name: begin
-- A run starts; its process holds the lock of the same name for as long as it lives.
INSERT INTO {schema}.pipeline_runs
    (run_id, job, window_start, window_end, arguments, started_at, master, host, pid)
SELECT run_id, job, window_start, window_end, arguments, started_at, master, host, pid
FROM jsonb_to_record($1::jsonb) AS said (run_id uuid, job text, window_start timestamptz, window_end timestamptz,
    arguments jsonb, started_at timestamptz, master text, host text, pid integer);

-- name: name_application
-- Spark is up; this is how it calls the run.
UPDATE {schema}.pipeline_runs SET spark_app_id = $2 WHERE run_id = $1::uuid;

-- name: finish
-- A run ends, with what it counted or with its error.
UPDATE {schema}.pipeline_runs AS run
SET outcome = said.outcome, rows_in = said.rows_in, rows_out = said.rows_out, error = said.error,
    details = coalesce(said.details, '{}'), ended_at = said.ended_at, duration_ms = said.duration_ms
FROM jsonb_to_record($1::jsonb) AS said (run_id uuid, outcome text, rows_in bigint, rows_out bigint, error jsonb,
    details jsonb, ended_at timestamptz, duration_ms bigint)
WHERE run.run_id = said.run_id AND run.outcome = 'running';

-- name: hold
-- The lock of a run: it ends with the connection, so also with a process that was killed.
SELECT pg_advisory_lock(hashtextextended('pipeline run ' || $1, 0))::text;

-- name: bury
-- Runs that nobody holds any more have died; their end is the moment it was noticed.
WITH open AS MATERIALIZED (
    SELECT run_id FROM {schema}.pipeline_runs WHERE outcome = 'running'
), dead AS MATERIALIZED (
    SELECT run_id FROM open WHERE pg_try_advisory_xact_lock(hashtextextended('pipeline run ' || run_id, 0))
)
UPDATE {schema}.pipeline_runs SET outcome = 'died', ended_at = $1
WHERE outcome = 'running' AND run_id IN (SELECT run_id FROM dead);

-- name: recent
-- The latest runs, or one of them.
SELECT run_id::text, job, window_start, window_end, arguments::text, outcome, rows_in, rows_out, details::text,
    error::text, started_at, ended_at, duration_ms, spark_app_id, master, host, pid
FROM {schema}.pipeline_runs
WHERE $1 = '' OR run_id = nullif($1, '')::uuid
ORDER BY started_at DESC, run_id DESC
LIMIT $2;

-- name: prepared
-- Whether the table is there yet.
SELECT to_regclass('{schema}.pipeline_runs') IS NOT NULL;
