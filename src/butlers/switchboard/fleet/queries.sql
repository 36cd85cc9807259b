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

-- name: log_heartbeats
-- Every heartbeat of those who may speak for their connector.
INSERT INTO {schema}.connector_heartbeat_log
    (id, connector_type, endpoint_identity, instance_id, state, error_message, uptime_s, messages_ingested,
     messages_failed, source_api_calls, checkpoint_saves, dedupe_accepted, received_at, sent_at)
SELECT beat.id, connector_type, endpoint_identity, beat.instance_id, beat.state, beat.error_message, beat.uptime_s,
       beat.messages_ingested, beat.messages_failed, beat.source_api_calls, beat.checkpoint_saves,
       beat.dedupe_accepted, beat.received_at, beat.sent_at
FROM jsonb_to_recordset($1) AS beat
    (id uuid, principal text, connector_type text, endpoint_identity text, instance_id uuid, state text,
     error_message text, uptime_s double precision, messages_ingested bigint, messages_failed bigint,
     source_api_calls bigint, checkpoint_saves bigint, dedupe_accepted bigint, received_at timestamptz,
     sent_at timestamptz)
JOIN {schema}.connector_registry AS known USING (connector_type, endpoint_identity)
WHERE known.principal = beat.principal
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

-- name: steps_between_heartbeats
-- What counters grew by from $1 until before $2, by unit $3 of time; $4: the age in seconds up to which a process without an earlier heartbeat counts from zero, $5: how many earlier heartbeats of a process are looked at.
WITH fresh AS (
    SELECT * FROM {schema}.connector_heartbeat_log WHERE received_at >= $1 AND received_at < $2
), process AS (
    SELECT DISTINCT connector_type, endpoint_identity, instance_id FROM fresh
), seen AS (
    SELECT * FROM fresh
    UNION ALL
    SELECT earlier.* FROM process CROSS JOIN LATERAL (
        SELECT logged.* FROM {schema}.connector_heartbeat_log AS logged
        WHERE logged.connector_type = process.connector_type
          AND logged.endpoint_identity = process.endpoint_identity
          AND logged.instance_id = process.instance_id
          AND logged.received_at < $1
        ORDER BY logged.received_at DESC, logged.id DESC
        LIMIT $5
    ) AS earlier
), begun AS (
    -- Younger than before, and sent later: it began anew under the same name.
    SELECT seen.*, coalesce(uptime_s < lag(uptime_s) OVER of_process AND sent_at > lag(sent_at) OVER of_process, false)
        AS anew
    FROM seen
    WINDOW of_process AS (PARTITION BY connector_type, endpoint_identity, instance_id ORDER BY received_at, id)
), lived AS (
    SELECT begun.*, count(*) FILTER (WHERE anew) OVER (
        PARTITION BY connector_type, endpoint_identity, instance_id ORDER BY received_at, id) AS life
    FROM begun
), placed AS (
    SELECT lived.*, coalesce(uptime_s < max(uptime_s) OVER (
        PARTITION BY connector_type, endpoint_identity, instance_id, life ORDER BY received_at, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), false) AS overtaken
    FROM lived
), compared AS (
    SELECT placed.*,
        coalesce(lag(messages_ingested) OVER of_life, CASE WHEN unknown THEN messages_ingested ELSE 0 END)
            AS ingested_before,
        coalesce(lag(messages_failed) OVER of_life, CASE WHEN unknown THEN messages_failed ELSE 0 END)
            AS failed_before,
        coalesce(lag(source_api_calls) OVER of_life, CASE WHEN unknown THEN source_api_calls ELSE 0 END)
            AS calls_before,
        coalesce(lag(dedupe_accepted) OVER of_life, CASE WHEN unknown THEN dedupe_accepted ELSE 0 END)
            AS accepted_before
    FROM placed CROSS JOIN LATERAL (SELECT uptime_s > $4 AND NOT anew AS unknown) AS past
    WINDOW of_life AS (
        PARTITION BY connector_type, endpoint_identity, instance_id, life, overtaken ORDER BY received_at, id)
), step AS (
    SELECT connector_type, endpoint_identity, received_at, state, NOT overtaken AS says_more,
        messages_ingested - CASE WHEN messages_ingested < ingested_before THEN 0 ELSE ingested_before END AS ingested,
        messages_failed - CASE WHEN messages_failed < failed_before THEN 0 ELSE failed_before END AS failed,
        source_api_calls - CASE WHEN source_api_calls < calls_before THEN 0 ELSE calls_before END AS calls,
        dedupe_accepted - CASE WHEN dedupe_accepted < accepted_before THEN 0 ELSE accepted_before END AS accepted
    FROM compared
    WHERE received_at >= $1
)
-- A sum may be larger than any of its parts: what cannot be stored must not stop the others.
SELECT connector_type, endpoint_identity, date_trunc($3, received_at, 'UTC') AS since,
       least(coalesce(sum(ingested) FILTER (WHERE says_more), 0), 9223372036854775807)::bigint AS messages_ingested,
       least(coalesce(sum(failed) FILTER (WHERE says_more), 0), 9223372036854775807)::bigint AS messages_failed,
       least(coalesce(sum(calls) FILTER (WHERE says_more), 0), 9223372036854775807)::bigint AS source_api_calls,
       least(coalesce(sum(accepted) FILTER (WHERE says_more), 0), 9223372036854775807)::bigint AS dedupe_accepted,
       count(*) AS heartbeat_count,
       count(*) FILTER (WHERE state = 'healthy') AS healthy_count,
       count(*) FILTER (WHERE state = 'degraded') AS degraded_count,
       count(*) FILTER (WHERE state = 'error') AS error_count
FROM step
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3;

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
