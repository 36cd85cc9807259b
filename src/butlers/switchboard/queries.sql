-- name: admit_events
-- Deduplicate and store a batch in one statement, an array per column; returns the keys that were new. A content key may
-- be reused once its window has passed. What is shed comes to its end at once.
WITH incoming AS (
    SELECT * FROM unnest(
        $1::text[], $2::text[], $3::uuid[], $4::timestamptz[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
        $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::boolean[]
    ) AS event (
        dedupe_key, strategy, request_id, received_at, request_context, raw_payload, normalized_text, attachments,
        policy_tier, pinned_target, submitted_by, schema_version, source_channel, thread_key, lifecycle_state,
        lifecycle_error, signal_pending)
), fresh AS (
    INSERT INTO {schema}.ingress_dedupe AS known (dedupe_key, request_id, received_at, strategy)
    SELECT dedupe_key, request_id, received_at, strategy FROM incoming
    ORDER BY dedupe_key
    ON CONFLICT (dedupe_key) DO UPDATE
        SET request_id = excluded.request_id, received_at = excluded.received_at
        WHERE known.strategy = 'content' AND known.received_at < excluded.received_at - $18::interval
    RETURNING dedupe_key
), stored AS (
    INSERT INTO {schema}.message_inbox
        (request_id, received_at, request_context, raw_payload, normalized_text, attachments, policy_tier,
         pinned_target, dedupe_key, submitted_by, schema_version, source_channel, thread_key, lifecycle_state,
         lifecycle_error, signal_pending, final_state_at, updated_at)
    SELECT request_id, received_at, request_context::jsonb, raw_payload::jsonb, normalized_text, attachments::jsonb,
           policy_tier, pinned_target, dedupe_key, submitted_by, schema_version, source_channel, thread_key,
           lifecycle_state, lifecycle_error::jsonb, signal_pending,
           CASE WHEN lifecycle_state = 'errored' THEN received_at END, received_at
    FROM incoming JOIN fresh USING (dedupe_key)
)
SELECT dedupe_key FROM fresh;

-- name: known_requests
-- The canonical request of keys that were there before; a content key counts for as long as its window.
SELECT dedupe_key, request_id FROM {schema}.ingress_dedupe
WHERE dedupe_key = ANY($1::text[]) AND (strategy <> 'content' OR received_at >= $2);

-- name: next_in_thread
-- What may be worked on now that an earlier message of the thread is out of the way.
SELECT request_id, received_at, policy_tier, source_channel, attempts FROM {schema}.message_inbox
WHERE thread_key = $1 AND lifecycle_state = 'accepted' AND (not_before IS NULL OR not_before <= $2)
ORDER BY received_at, request_id
LIMIT 1;

-- name: record_decision
-- Store the decision of a claimed request; no row comes back when another worker holds it. `held_up_until`: until when an
-- earlier message of the thread, that was put off because one of these butlers is away, is to be waited for; one that is
-- claimed again by now still comes first. NULL in waiting_for: it is not known for which butler, so for each.
WITH written AS (
    UPDATE {schema}.message_inbox AS work
    SET routing_output = $4, prompt_version = $5, model_version = $6, updated_at = $7
    WHERE work.request_id = $1 AND work.received_at = $2 AND work.claim_token = $3 AND {held}
    RETURNING work.request_id, work.received_at, work.thread_key
)
SELECT (
    SELECT max(greatest(earlier.not_before, $7::timestamptz + interval '1 second'))
    FROM {schema}.message_inbox AS earlier
    WHERE earlier.thread_key = written.thread_key AND earlier.lifecycle_state IN ('accepted', 'progress')
      AND (earlier.received_at, earlier.request_id) < (written.received_at, written.request_id)
      AND earlier.not_before IS NOT NULL AND (earlier.waiting_for IS NULL OR earlier.waiting_for ?| $8::text[])
) AS held_up_until
FROM written;

-- name: finish_request
-- End a claimed request, and log what was dispatched for it; no row comes back when another worker holds it. The log
-- lines are written all the same: the dispatches took place.
WITH written AS (
    UPDATE {schema}.message_inbox AS work
    SET lifecycle_state = $4, dispatch_outcomes = $5, aggregated_reply = $6, lifecycle_error = $7, final_state_at = $8,
        signal_pending = $9, waiting_for = NULL, updated_at = $8, {free}
    WHERE work.request_id = $1 AND work.received_at = $2 AND work.claim_token = $3 AND {held}
    RETURNING work.request_id
), logged AS (
    INSERT INTO {schema}.routing_log
        (id, request_id, segment_id, source_channel, target_butler, success, duration_ms, error_class, error, router,
         confidence, prompt_version, model_version, created_at)
    SELECT id, request_id, segment_id, source_channel, target_butler, success, duration_ms, error_class, error, router,
           confidence, prompt_version, model_version, created_at
    FROM jsonb_populate_recordset(NULL::{schema}.routing_log, $10)
)
SELECT request_id FROM written;

-- name: waiting_messages
-- Accepted a while ago and in no queue, or left behind by a dead worker; of each thread only the first. The channels
-- take turns, each its oldest first: one that is flooded does not hide the others.
SELECT found.request_id, found.received_at, found.policy_tier, found.source_channel, found.attempts
FROM (SELECT DISTINCT source_channel AS name FROM {schema}.message_inbox
      WHERE lifecycle_state IN ('accepted', 'progress')) AS channel
CROSS JOIN LATERAL (
    SELECT work.request_id, work.received_at, work.policy_tier, work.source_channel, work.attempts,
           row_number() OVER (ORDER BY work.received_at) AS turn
    FROM {schema}.message_inbox AS work
    WHERE work.source_channel = channel.name AND {claimable}
      AND (work.lifecycle_state = 'progress' OR work.received_at <= $2)
    ORDER BY work.received_at
    LIMIT $3
) AS found
ORDER BY found.turn, found.received_at
LIMIT $3;

-- name: log_routing
-- One line per dispatched segment, kept for long.
INSERT INTO {schema}.routing_log
    (id, request_id, segment_id, source_channel, target_butler, success, duration_ms, error_class, error, router,
     confidence, prompt_version, model_version, created_at)
SELECT id, request_id, segment_id, source_channel, target_butler, success, duration_ms, error_class, error, router,
       confidence, prompt_version, model_version, created_at
FROM jsonb_populate_recordset(NULL::{schema}.routing_log, $1);

-- name: get_request
-- One request, whole.
SELECT * FROM {schema}.message_inbox WHERE request_id = $1;

-- name: list_requests
-- Recent requests, newest first, from where a page ended. The place is a time and an id, so that the index leads to it
-- however many newer requests there are; of a request that is gone, everything older is gone, too.
SELECT request_id, received_at, request_context ->> 'source_channel' AS source_channel,
       request_context ->> 'source_sender_identity' AS source_sender_identity, policy_tier, lifecycle_state,
       attempts, final_state_at, routing_output, lifecycle_error
FROM {schema}.message_inbox
WHERE (received_at, request_id) < (
          CASE WHEN $1::uuid IS NULL THEN 'infinity'::timestamptz
               ELSE (SELECT received_at FROM {schema}.message_inbox WHERE request_id = $1) END,
          coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
ORDER BY received_at DESC, request_id DESC
LIMIT $2;

-- name: list_requests_in_state
-- The same of one state, by an index of its own: however rare the state is, the others are not read.
SELECT request_id, received_at, request_context ->> 'source_channel' AS source_channel,
       request_context ->> 'source_sender_identity' AS source_sender_identity, policy_tier, lifecycle_state,
       attempts, final_state_at, routing_output, lifecycle_error
FROM {schema}.message_inbox
WHERE (received_at, request_id) < (
          CASE WHEN $1::uuid IS NULL THEN 'infinity'::timestamptz
               ELSE (SELECT received_at FROM {schema}.message_inbox WHERE request_id = $1) END,
          coalesce($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
  AND lifecycle_state = $3
ORDER BY received_at DESC, request_id DESC
LIMIT $2;

-- name: routing_of_request
-- The dispatches of one request.
SELECT segment_id, target_butler, success, duration_ms, error_class, error, router, confidence, created_at
FROM {schema}.routing_log WHERE request_id = $1 ORDER BY created_at;

-- name: notifications_of_request
-- What butlers asked to say in answer to one request; the text stays out.
SELECT id, source_butler, channel, recipient, status, delivery_id, error, metadata, created_at
FROM {schema}.notifications WHERE request_id = $1 ORDER BY created_at;

-- name: record_notification
-- One line per outbound message that a butler asked for, and what Messenger answered.
INSERT INTO {schema}.notifications
    (id, request_id, source_butler, channel, recipient, message, metadata, status, delivery_id, error, trace_id, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: forget_notifications
-- Wishes as old as the months of the inbox that are gone.
DELETE FROM {schema}.notifications WHERE created_at < $1;

-- name: lineage
-- Where a request came from and what it was, for an answer to it.
SELECT request_context, raw_payload FROM {schema}.message_inbox WHERE request_id = $1;

-- name: counts_by_state
-- How many requests stand where: all that are open, and those that came since a moment and have ended.
SELECT lifecycle_state, count(*) AS requests FROM {schema}.message_inbox
WHERE lifecycle_state IN ('accepted', 'progress') GROUP BY lifecycle_state
UNION ALL
SELECT lifecycle_state, count(*) FROM {schema}.message_inbox
WHERE lifecycle_state IN ('parsed', 'errored') AND received_at >= $1 GROUP BY lifecycle_state;

-- name: forget_dedupe_keys
-- Keys so old that no source repeats their events any more.
DELETE FROM {schema}.ingress_dedupe WHERE received_at < $1;

-- name: count_waiting
-- How many messages are open, by the channel they came by.
SELECT source_channel, count(*) AS waiting FROM {schema}.message_inbox
WHERE lifecycle_state IN ('accepted', 'progress')
GROUP BY source_channel;

-- name: unsignalled
-- Requests that ended a while ago and whose authors have not been shown how.
SELECT request_id, received_at, request_context, lifecycle_state, lifecycle_error, dispatch_outcomes, override
FROM {schema}.message_inbox
WHERE signal_pending AND final_state_at BETWEEN $1 AND $2
ORDER BY final_state_at
LIMIT $3;

-- name: signalled
-- The author has been shown the end, or cannot be.
UPDATE {schema}.message_inbox SET signal_pending = false WHERE request_id = $1;

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

-- name: changed_requests
-- What changed since a place, up to the horizon below which nothing can appear any more; $1 NULL: only the horizon.
SELECT horizon.number AS horizon, changed.*
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS number) AS horizon
LEFT JOIN LATERAL (
    SELECT changed_in, request_id, source_channel, lifecycle_state, attempts, received_at, updated_at,
           lifecycle_error ->> 'class' AS error_class
    FROM {schema}.message_inbox
    WHERE changed_in >= $1::bigint AND changed_in < horizon.number
    ORDER BY changed_in, received_at, request_id
    LIMIT $2
) AS changed ON true;
