-- name: accept_route
-- Remember routed work; a repeat of the same segment changes nothing.
INSERT INTO {schema}.route_inbox (id, request_id, subrequest_id, segment_id, envelope, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $6)
ON CONFLICT (request_id, segment_id) DO NOTHING;

-- name: read_route
-- The present state of one piece of work.
SELECT lifecycle_state, response, attempts, lease_expires_at
FROM {schema}.route_inbox WHERE request_id = $1 AND segment_id = $2;

-- name: abandoned_routes
-- Work that nobody holds: accepted a while ago and never started, or its worker died.
SELECT request_id, segment_id FROM {schema}.route_inbox AS work
WHERE (lifecycle_state = 'accepted' AND created_at <= $2) OR {abandoned}
ORDER BY created_at
LIMIT $3;

-- name: routes_of_request
-- Every piece of work of one request, for tracing.
SELECT subrequest_id, segment_id, lifecycle_state, attempts, error, response, created_at, updated_at
FROM {schema}.route_inbox WHERE request_id = $1 ORDER BY created_at;

-- name: start_session
-- A session begins.
INSERT INTO {schema}.sessions (id, trigger_source, request_id, runtime, model, status, started_at)
VALUES ($1, $2, $3, $4, $5, 'running', $6);

-- name: end_session
-- A session ends, well or badly.
UPDATE {schema}.sessions
SET status = $2, result = $3, error_class = $4, error = $5, model = coalesce($6, model), input_tokens = $7,
    output_tokens = $8, duration_ms = $9, ended_at = $10
WHERE id = $1;

-- name: fail_lost_sessions
-- Sessions that a dead process left running; no live one can be older than its own time limit.
UPDATE {schema}.sessions
SET status = 'failed', error_class = 'internal_error', error = 'the process ended during the session', ended_at = $2
WHERE status = 'running' AND started_at < $1;

-- name: list_sessions
-- Newest first, before a cursor.
SELECT id, trigger_source, request_id, runtime, model, status, error_class, error, duration_ms, started_at, ended_at
FROM {schema}.sessions
WHERE ($1::uuid IS NULL OR id < $1)
ORDER BY id DESC
LIMIT $2;

-- name: get_session
-- One session, whole.
SELECT * FROM {schema}.sessions WHERE id = $1;

-- name: get_state
-- One value.
SELECT value, updated_at FROM {schema}.state WHERE key = $1;

-- name: set_state
-- Write one value.
INSERT INTO {schema}.state (key, value, updated_at) VALUES ($1, $2, $3)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at;

-- name: delete_state
-- Forget one value.
DELETE FROM {schema}.state WHERE key = $1 RETURNING 1;

-- name: list_state
-- Keys with a prefix, in order, after a cursor.
SELECT key, value, updated_at FROM {schema}.state
WHERE starts_with(key, $1) AND ($2::text IS NULL OR key > $2)
ORDER BY key
LIMIT $3;

-- name: sync_schedule
-- A schedule of butler.toml: its own words win, but a changed cron starts a new count.
INSERT INTO {schema}.scheduled_tasks AS task
    (name, cron, dispatch_mode, job_name, job_args, prompt, enabled, source, next_run_at, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'toml', $8, $9, $9)
ON CONFLICT (name) DO UPDATE
SET cron = excluded.cron, dispatch_mode = excluded.dispatch_mode, job_name = excluded.job_name,
    job_args = excluded.job_args, prompt = excluded.prompt, enabled = excluded.enabled, source = 'toml',
    next_run_at = CASE WHEN task.cron IS DISTINCT FROM excluded.cron OR task.next_run_at IS NULL
                       THEN excluded.next_run_at ELSE task.next_run_at END,
    updated_at = excluded.updated_at;

-- name: drop_stale_schedules
-- Schedules that have left butler.toml.
DELETE FROM {schema}.scheduled_tasks WHERE source = 'toml' AND name <> ALL($1::text[]);

-- name: create_schedule
-- A schedule made by a tool; the name must be new.
INSERT INTO {schema}.scheduled_tasks
    (name, cron, dispatch_mode, job_name, job_args, prompt, enabled, source, next_run_at, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'tool', $8, $9, $9)
ON CONFLICT (name) DO NOTHING
RETURNING name;

-- name: update_schedule
-- Change when it runs, or whether.
UPDATE {schema}.scheduled_tasks
SET cron = $2, enabled = $3, next_run_at = $4, updated_at = $5
WHERE name = $1
RETURNING name;

-- name: delete_schedule
-- Only schedules made by a tool: those of butler.toml would come back at the next start.
DELETE FROM {schema}.scheduled_tasks WHERE name = $1 AND source = 'tool' RETURNING name;

-- name: list_schedules
-- All schedules by name.
SELECT * FROM {schema}.scheduled_tasks ORDER BY name;

-- name: get_schedule
-- One schedule.
SELECT * FROM {schema}.scheduled_tasks WHERE name = $1;

-- name: due_schedule
-- What is due longest and not under way here, locked for this transaction so that two processes never run it twice.
SELECT name, cron, dispatch_mode, job_name, job_args, prompt, next_run_at
FROM {schema}.scheduled_tasks
WHERE enabled AND next_run_at <= $1 AND name <> ALL($2::text[])
ORDER BY next_run_at
LIMIT 1
FOR UPDATE SKIP LOCKED;

-- name: next_due_schedule
-- When the next schedule is due that is not under way here.
SELECT min(next_run_at) FROM {schema}.scheduled_tasks WHERE enabled AND name <> ALL($1::text[]);

-- name: advance_schedule
-- Move on before running: a crash then skips one run instead of repeating it.
UPDATE {schema}.scheduled_tasks SET next_run_at = $2, last_run_at = $3, updated_at = $3 WHERE name = $1;

-- name: record_schedule_result
-- What the last run said; a schedule for one moment is over with it, unless it may be tried again.
UPDATE {schema}.scheduled_tasks
SET last_result = $2, updated_at = $3, enabled = enabled AND (cron IS NOT NULL OR $4::boolean),
    next_run_at = CASE WHEN cron IS NOT NULL OR $4::boolean THEN next_run_at END
WHERE name = $1;
