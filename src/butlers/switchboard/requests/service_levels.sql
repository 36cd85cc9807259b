-- name: add_accept_times
-- Add what the door measured since the last time, an array per column.
INSERT INTO {schema}.ingress_accept_times AS known (minute, source_channel, accept_ms, messages)
SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::integer[], $4::bigint[])
ON CONFLICT (minute, source_channel, accept_ms) DO UPDATE SET messages = known.messages + excluded.messages;

-- name: forget_accept_times
-- Older than any window that can be asked for.
DELETE FROM {schema}.ingress_accept_times WHERE minute < $1;

-- name: accept_times
-- Percentiles over counted values: the least value that covers the share.
WITH counted AS (
    SELECT source_channel, accept_ms, sum(messages) AS messages FROM {schema}.ingress_accept_times
    WHERE minute >= date_trunc('minute', $1::timestamptz) AND minute < $2
    GROUP BY source_channel, accept_ms
), ranked AS (
    SELECT source_channel, accept_ms,
           sum(messages) OVER (PARTITION BY source_channel ORDER BY accept_ms) AS up_to,
           sum(messages) OVER (PARTITION BY source_channel) AS total
    FROM counted
)
SELECT source_channel, max(total)::bigint AS messages,
       min(accept_ms) FILTER (WHERE up_to >= 0.50 * total)::float8 AS p50_ms,
       min(accept_ms) FILTER (WHERE up_to >= 0.95 * total)::float8 AS p95_ms,
       min(accept_ms) FILTER (WHERE up_to >= 0.99 * total)::float8 AS p99_ms
FROM ranked GROUP BY source_channel ORDER BY source_channel;

-- name: completions
-- Requests that came in the window: how they ended, and from the accept to the end. What was shed at the door, and what a
-- person decided about, is counted apart and in no percentile.
WITH request AS (
    SELECT source_channel, policy_tier, lifecycle_state, override IS NOT NULL AS decided,
           override IS NULL AND progress_at IS NULL AND final_state_at IS NOT NULL AS shed,
           CASE WHEN override IS NULL AND progress_at IS NOT NULL
                THEN extract(epoch FROM final_state_at - received_at)::float8 * 1000 END AS latency_ms
    FROM {schema}.message_inbox WHERE received_at >= $1 AND received_at < $2
)
SELECT source_channel, policy_tier,
       count(*) FILTER (WHERE lifecycle_state IN ('accepted', 'progress')) AS open,
       count(*) FILTER (WHERE lifecycle_state = 'parsed' AND NOT decided) AS parsed,
       count(*) FILTER (WHERE lifecycle_state = 'errored' AND NOT decided AND NOT shed) AS errored,
       count(*) FILTER (WHERE shed) AS shed,
       count(*) FILTER (WHERE decided AND lifecycle_state IN ('parsed', 'errored')) AS decided_by_a_person,
       percentile_cont(0.50) WITHIN GROUP (ORDER BY latency_ms) AS p50_ms,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY latency_ms) AS p95_ms,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY latency_ms) AS p99_ms
FROM request GROUP BY source_channel, policy_tier ORDER BY source_channel, policy_tier;

-- name: routes
-- Dispatches to butlers that ended in the window, each try of a request counted once.
SELECT target_butler, count(*) AS routes, count(*) FILTER (WHERE success) AS succeeded
FROM {schema}.routing_log WHERE created_at >= $1 AND created_at < $2
GROUP BY target_butler ORDER BY target_butler;

-- name: route_errors
-- Why the others failed.
SELECT target_butler, error_class, count(*) AS routes
FROM {schema}.routing_log WHERE created_at >= $1 AND created_at < $2 AND NOT success
GROUP BY target_butler, error_class ORDER BY target_butler, error_class;

-- name: interactive
-- From PROGRESS to PARSED or ERRORED, where a person waits for it: a chat, or a request of the tier `interactive`.
SELECT source_channel, lifecycle_state, count(*) AS requests,
       percentile_cont(0.50) WITHIN GROUP (ORDER BY latency_ms) AS p50_ms,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY latency_ms) AS p95_ms,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY latency_ms) AS p99_ms
FROM (
    SELECT source_channel, lifecycle_state,
           extract(epoch FROM final_state_at - progress_at)::float8 * 1000 AS latency_ms
    FROM {schema}.message_inbox
    WHERE received_at >= $1 AND received_at < $2 AND (source_channel = ANY($3::text[]) OR policy_tier = 'interactive')
      AND final_state_at IS NOT NULL AND progress_at IS NOT NULL AND override IS NULL
) AS ended
GROUP BY source_channel, lifecycle_state ORDER BY source_channel, lifecycle_state;
