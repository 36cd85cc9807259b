-- name: principal_of
-- Who speaks for a connector.
SELECT principal FROM {schema}.connector_registry WHERE connector_type = $1 AND endpoint_identity = $2;

-- name: register_connectors
-- What connectors said of themselves: the newest heartbeat of each; the first one registers it.
INSERT INTO {schema}.connector_registry AS known
    (connector_type, endpoint_identity, principal, instance_id, version, state, error_message, uptime_s, first_seen_at,
     last_heartbeat_at, registered_via, messages_ingested, messages_failed, source_api_calls, checkpoint_saves,
     dedupe_accepted, checkpoint_cursor, checkpoint_updated_at, capabilities)
SELECT DISTINCT ON (connector_type, endpoint_identity)
    connector_type, endpoint_identity, principal, instance_id, version, state, error_message, uptime_s, received_at,
    received_at, 'self', messages_ingested, messages_failed, source_api_calls, checkpoint_saves,
    dedupe_accepted, checkpoint_cursor, checkpoint_updated_at, capabilities
FROM jsonb_to_recordset($1) AS beat
    (connector_type text, endpoint_identity text, principal text, instance_id uuid, version text, state text,
     error_message text, uptime_s double precision, received_at timestamptz, messages_ingested bigint,
     messages_failed bigint, source_api_calls bigint, checkpoint_saves bigint, dedupe_accepted bigint,
     checkpoint_cursor text, checkpoint_updated_at timestamptz, capabilities jsonb, id uuid)
ORDER BY connector_type, endpoint_identity, received_at DESC, id DESC
ON CONFLICT (connector_type, endpoint_identity) DO UPDATE SET
    instance_id = excluded.instance_id, version = excluded.version, state = excluded.state,
    error_message = excluded.error_message, uptime_s = excluded.uptime_s,
    last_heartbeat_at = excluded.last_heartbeat_at, messages_ingested = excluded.messages_ingested,
    messages_failed = excluded.messages_failed, source_api_calls = excluded.source_api_calls,
    checkpoint_saves = excluded.checkpoint_saves, dedupe_accepted = excluded.dedupe_accepted,
    checkpoint_cursor = coalesce(excluded.checkpoint_cursor, known.checkpoint_cursor),
    checkpoint_updated_at = coalesce(excluded.checkpoint_updated_at, known.checkpoint_updated_at),
    capabilities = excluded.capabilities
WHERE known.principal = excluded.principal AND known.last_heartbeat_at <= excluded.last_heartbeat_at;

-- name: processes_of_heartbeats
-- Who may speak for the connectors of heartbeats, and the lives of their processes; `register_connectors` holds the lock.
SELECT connector_type, endpoint_identity, beat.instance_id, known.principal, process.lives
FROM (SELECT DISTINCT connector_type, endpoint_identity, instance_id
      FROM jsonb_to_recordset($1) AS heartbeat (connector_type text, endpoint_identity text, instance_id uuid)) AS beat
LEFT JOIN {schema}.connector_processes AS process USING (connector_type, endpoint_identity, instance_id)
JOIN {schema}.connector_registry AS known USING (connector_type, endpoint_identity);

-- name: log_heartbeats
-- Heartbeats ($1) with what each added, and what the next ones of their processes ($2) are compared with.
WITH compared_with AS (
    INSERT INTO {schema}.connector_processes AS known
        (connector_type, endpoint_identity, instance_id, last_heartbeat_at, lives)
    SELECT connector_type, endpoint_identity, instance_id, last_heartbeat_at, lives
    FROM jsonb_to_recordset($2) AS process
        (connector_type text, endpoint_identity text, instance_id uuid, last_heartbeat_at timestamptz, lives jsonb)
    ON CONFLICT (connector_type, endpoint_identity, instance_id) DO UPDATE SET
        last_heartbeat_at = greatest(known.last_heartbeat_at, excluded.last_heartbeat_at), lives = excluded.lives
)
INSERT INTO {schema}.connector_heartbeat_log
    (id, connector_type, endpoint_identity, instance_id, state, error_message, uptime_s, messages_ingested,
     messages_failed, source_api_calls, checkpoint_saves, dedupe_accepted, received_at, sent_at,
     added_messages_ingested, added_messages_failed, added_source_api_calls, added_dedupe_accepted)
SELECT id, connector_type, endpoint_identity, instance_id, state, error_message, uptime_s, messages_ingested,
       messages_failed, source_api_calls, checkpoint_saves, dedupe_accepted, received_at, sent_at,
       added_messages_ingested, added_messages_failed, added_source_api_calls, added_dedupe_accepted
FROM jsonb_to_recordset($1) AS beat
    (id uuid, connector_type text, endpoint_identity text, instance_id uuid, state text, error_message text,
     uptime_s double precision, messages_ingested bigint, messages_failed bigint, source_api_calls bigint,
     checkpoint_saves bigint, dedupe_accepted bigint, received_at timestamptz, sent_at timestamptz,
     added_messages_ingested bigint, added_messages_failed bigint, added_source_api_calls bigint,
     added_dedupe_accepted bigint)
ON CONFLICT DO NOTHING;

-- name: list_connectors
-- All that ever reported.
SELECT * FROM {schema}.connector_registry ORDER BY connector_type, endpoint_identity;

-- name: get_connector
-- Whether one is there, and what it can do.
SELECT last_heartbeat_at, capabilities FROM {schema}.connector_registry
WHERE connector_type = $1 AND endpoint_identity = $2;

-- name: deregister_connector
-- An operator forgets one.
DELETE FROM {schema}.connector_registry WHERE connector_type = $1 AND endpoint_identity = $2 RETURNING connector_type;

-- name: last_hour
-- The newest hour that was rolled up.
SELECT max(hour) FROM {schema}.connector_stats_hourly;

-- name: last_day
-- The newest day that was rolled up.
SELECT max(day) FROM {schema}.connector_stats_daily;

-- name: added_between
-- What the heartbeats of from $1 until before $2 added; a sum that cannot be stored must not stop the others.
SELECT connector_type, endpoint_identity,
       least(coalesce(sum(added_messages_ingested), 0), 9223372036854775807)::bigint AS messages_ingested,
       least(coalesce(sum(added_messages_failed), 0), 9223372036854775807)::bigint AS messages_failed,
       least(coalesce(sum(added_source_api_calls), 0), 9223372036854775807)::bigint AS source_api_calls,
       least(coalesce(sum(added_dedupe_accepted), 0), 9223372036854775807)::bigint AS dedupe_accepted,
       count(*) AS heartbeat_count,
       count(*) FILTER (WHERE state = 'healthy') AS healthy_count,
       count(*) FILTER (WHERE state = 'degraded') AS degraded_count,
       count(*) FILTER (WHERE state = 'error') AS error_count
FROM {schema}.connector_heartbeat_log
WHERE received_at >= $1 AND received_at < $2
GROUP BY 1, 2;

-- name: rolled_up_since
-- What was rolled up since a moment.
SELECT connector_type, endpoint_identity,
       least(sum(messages_ingested), 9223372036854775807)::bigint AS messages_ingested,
       least(sum(messages_failed), 9223372036854775807)::bigint AS messages_failed,
       least(sum(source_api_calls), 9223372036854775807)::bigint AS source_api_calls,
       least(sum(dedupe_accepted), 9223372036854775807)::bigint AS dedupe_accepted,
       sum(heartbeat_count)::bigint AS heartbeat_count, sum(healthy_count)::bigint AS healthy_count,
       sum(degraded_count)::bigint AS degraded_count, sum(error_count)::bigint AS error_count
FROM {schema}.connector_stats_hourly
WHERE hour >= $1
GROUP BY 1, 2;

-- name: create_job
-- A job that waits for its connector.
INSERT INTO {schema}.backfill_jobs
    (job_id, connector_type, endpoint_identity, target_categories, date_from, date_to, rate_limit_per_hour,
     daily_cost_cap_cents, status, created_by, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'pending', $9, $10, $10);

-- name: change_job
-- What an operator decided, if the job still stands where that is possible.
UPDATE {schema}.backfill_jobs
SET status = $3, updated_at = $4, completed_at = CASE WHEN $3 = 'cancelled' THEN $4 ELSE completed_at END
WHERE job_id = $1 AND status = ANY ($2::text[])
RETURNING status;

-- name: status_of_job
-- Why something was not possible.
SELECT status FROM {schema}.backfill_jobs WHERE job_id = $1;

-- name: connector_of_job
-- Who may report on it.
SELECT connector_type, endpoint_identity FROM {schema}.backfill_jobs WHERE job_id = $1;

-- name: list_jobs
-- Jobs and how far they are, newest first, with what they cost on day $4.
SELECT job_id, connector_type, endpoint_identity, target_categories, date_from, date_to, rate_limit_per_hour,
       daily_cost_cap_cents, status, cursor, rows_processed, rows_skipped, cost_spent_cents,
       coalesce(spent_cents, 0) AS cost_spent_today_cents, error, created_by, created_at, started_at, progress_at,
       completed_at, updated_at
FROM {schema}.backfill_jobs
LEFT JOIN (SELECT job_id, spent_cents FROM {schema}.backfill_spending WHERE day = $4) AS today USING (job_id)
WHERE ($1::text IS NULL OR connector_type = $1)
  AND ($2::text IS NULL OR endpoint_identity = $2) AND ($3::text IS NULL OR status = $3)
  AND ($5::timestamptz IS NULL OR (created_at, job_id) < ($5, $6))
ORDER BY created_at DESC, job_id DESC
LIMIT $7;

-- name: take_job
-- The oldest job that waits, or whose connector has been silent since $4, and may still spend on day $5.
UPDATE {schema}.backfill_jobs
SET status = 'active', started_at = coalesce(started_at, $3), progress_at = $3, updated_at = $3
WHERE job_id = (
    SELECT job.job_id FROM {schema}.backfill_jobs AS job
    WHERE job.connector_type = $1 AND job.endpoint_identity = $2
      AND (job.status = 'pending' OR (job.status = 'active' AND job.progress_at < $4))
      AND NOT EXISTS (
        SELECT FROM {schema}.backfill_spending AS spending
        WHERE spending.job_id = job.job_id AND spending.day = $5 AND spending.spent_cents >= job.daily_cost_cap_cents)
    ORDER BY job.created_at, job.job_id
    LIMIT 1
    FOR UPDATE SKIP LOCKED)
RETURNING job_id, target_categories, date_from, date_to, rate_limit_per_hour, daily_cost_cap_cents, cursor;

-- name: lock_job
-- How a job stands, until the transaction ends.
SELECT status, daily_cost_cap_cents FROM {schema}.backfill_jobs WHERE job_id = $1 FOR UPDATE;

-- name: spend
-- What a job cost on a day, this batch included.
INSERT INTO {schema}.backfill_spending AS spending (job_id, day, spent_cents) VALUES ($1, $2, $3)
ON CONFLICT (job_id, day) DO UPDATE SET spent_cents = spending.spent_cents + excluded.spent_cents
RETURNING spent_cents;

-- name: record_progress
-- What one batch did, and how the job stands after it.
UPDATE {schema}.backfill_jobs
SET rows_processed = rows_processed + $2, rows_skipped = rows_skipped + $3, cost_spent_cents = cost_spent_cents + $4,
    cursor = coalesce($5, cursor), error = coalesce($7, error), progress_at = $8, updated_at = $8,
    completed_at = CASE WHEN status = 'active' AND $6 IN ('completed', 'error') THEN $8 ELSE completed_at END,
    status = $6
WHERE job_id = $1;
