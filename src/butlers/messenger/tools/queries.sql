-- name: delivery
-- One delivery with what its provider calls it.
SELECT request.id, request.idempotency_key, request.request_id, request.origin_butler, request.channel,
       request.identity_scope, request.intent, request.target_identity, request.contact_id, request.message,
       request.subject, request.priority, request.not_after, request.duplicate_detection, request.status,
       request.attempts, request.admitted, request.next_attempt_at, request.replay_of, request.action_id,
       request.terminal_error_class, request.terminal_error_message, request.terminal_retryable, request.settled_by,
       request.settled_at, request.created_at, request.updated_at, request.terminal_at, request.envelope,
       request.decisions,
       (SELECT provider_delivery_id FROM {schema}.delivery_receipts AS receipt
        WHERE receipt.delivery_id = request.id AND receipt_type = 'sent'
        ORDER BY part DESC LIMIT 1) AS provider_delivery_id
FROM {schema}.delivery_requests AS request WHERE request.id = $1;

-- name: delivery_behind
-- The delivery that an id leads to: its own, its dead letter's, or that of the action that waits for a person.
SELECT id, kind FROM (
    SELECT id, 'delivery' AS kind, 1 AS place FROM {schema}.delivery_requests WHERE id = $1
    UNION ALL
    SELECT delivery_id, 'dead_letter', 2 FROM {schema}.delivery_dead_letter WHERE id = $1
    UNION ALL
    SELECT id, 'action', 3 FROM {schema}.delivery_requests WHERE action_id = $1
) AS found
ORDER BY place, id LIMIT 1;

-- name: search
-- Deliveries that fit every filter given, newest first, from a place in the list on.
SELECT id, request_id, origin_butler, channel, identity_scope, intent, target_identity, priority, status, attempts,
       replay_of, terminal_error_class, terminal_error_message, created_at, updated_at, terminal_at
FROM {schema}.delivery_requests
WHERE ($1::text IS NULL OR origin_butler = $1)
  AND ($2::text IS NULL OR channel = $2)
  AND ($3::text IS NULL OR intent = $3)
  AND ($4::text IS NULL OR status = $4)
  AND ($5::uuid IS NULL OR request_id = $5)
  AND ($6::timestamptz IS NULL OR created_at >= $6)
  AND ($7::timestamptz IS NULL OR created_at < $7)
  AND ($8::timestamptz IS NULL OR (created_at, id) < ($8, $9::uuid))
ORDER BY created_at DESC, id DESC
LIMIT $10;

-- name: attempts
-- All attempts at some deliveries, in order.
SELECT delivery_id, attempt_number, worker, started_at, completed_at, latency_ms, outcome, certainty, error_class,
       error_message, retryable, provider_response
FROM {schema}.delivery_attempts WHERE delivery_id = ANY($1::uuid[]) ORDER BY delivery_id, attempt_number;

-- name: receipts
-- Everything providers said about some deliveries, in order.
SELECT delivery_id, part, provider_delivery_id, receipt_type, received_at, metadata
FROM {schema}.delivery_receipts WHERE delivery_id = ANY($1::uuid[]) ORDER BY delivery_id, received_at, part;

-- name: deliveries_of_request
-- The deliveries of one request and the replays that descend from them, oldest first.
WITH RECURSIVE family AS (
    SELECT id FROM {schema}.delivery_requests WHERE request_id = $1
    UNION
    SELECT replay.id FROM {schema}.delivery_requests AS replay JOIN family ON replay.replay_of = family.id
)
SELECT request.id, request.request_id, request.origin_butler, request.channel, request.identity_scope, request.intent,
       request.target_identity, request.idempotency_key, request.status, request.attempts, request.replay_of,
       request.terminal_error_class, request.terminal_error_message, request.created_at, request.terminal_at,
       request.envelope, request.decisions
FROM family JOIN {schema}.delivery_requests AS request USING (id)
ORDER BY request.created_at, request.id;

-- name: obstacles
-- What stands before a delivery that waits: one ahead of it, a circuit, a window the provider asked for.
SELECT (SELECT earlier.id FROM {schema}.delivery_requests AS earlier
        WHERE earlier.ordering_key = request.ordering_key AND earlier.id < request.id
          AND earlier.status IN ('pending', 'in_progress', 'awaiting_retry')
        ORDER BY earlier.id LIMIT 1) AS earlier,
       state.state AS circuit, state.trip_reason, state.probe_at, throttle.until AS throttled_until, throttle.reason AS throttle_reason
FROM {schema}.delivery_requests AS request
LEFT JOIN {schema}.channel_states AS state ON state.name = request.channel || '.' || request.identity_scope
LEFT JOIN LATERAL (
    SELECT until, reason FROM {schema}.throttles
    WHERE until > $2 AND scope IN (
        request.channel || '.' || request.identity_scope,
        request.channel || '.' || request.identity_scope || ':' || request.target_identity)
    ORDER BY until DESC LIMIT 1) AS throttle ON true
WHERE request.id = $1;

-- name: dead_letters
-- Dead letters that fit every filter given, newest first, from a place in the list on.
SELECT id, delivery_id, request_id, origin_butler, channel, intent, target_identity, quarantine_reason, error_class,
       error_summary, total_attempts, first_attempt_at, last_attempt_at, replay_eligible, replay_count, last_replay_id,
       discarded_at, discard_reason, discarded_by, created_at
FROM {schema}.delivery_dead_letter
WHERE ($1::text IS NULL OR channel = $1)
  AND ($2::text IS NULL OR origin_butler = $2)
  AND ($3::text IS NULL OR error_class = $3)
  AND ($4::timestamptz IS NULL OR created_at >= $4)
  AND ($5::boolean OR discarded_at IS NULL)
  AND ($6::timestamptz IS NULL OR (created_at, id) < ($6, $7::uuid))
ORDER BY created_at DESC, id DESC
LIMIT $8;

-- name: dead_letter
-- One dead letter, whole.
SELECT * FROM {schema}.delivery_dead_letter WHERE id = $1;

-- name: dead_letter_of_delivery
-- The dead letter of one delivery, whole.
SELECT * FROM {schema}.delivery_dead_letter WHERE delivery_id = $1;

-- name: standing_of_deliveries
-- What forbids sending some deliveries again, looking at everything that descends from the same first delivery; one
-- that was settled as `send_again` is on its way itself. A new doubt takes the settlement back (finish_attempts).
WITH RECURSIVE ancestors AS (
    SELECT id AS asked, id, replay_of FROM {schema}.delivery_requests WHERE id = ANY($1::uuid[])
    UNION
    SELECT child.asked, parent.id, parent.replay_of
    FROM {schema}.delivery_requests AS parent JOIN ancestors AS child ON parent.id = child.replay_of
), family AS (
    SELECT asked, id FROM ancestors WHERE replay_of IS NULL
    UNION
    SELECT member.asked, replay.id
    FROM {schema}.delivery_requests AS replay JOIN family AS member ON replay.replay_of = member.id
)
SELECT family.asked AS delivery_id,
       bool_or(request.status = 'delivered') AS delivered,
       bool_or(request.status IN (
           'pending', 'in_progress', 'awaiting_retry', 'pending_approval', 'pending_missing_identifier'))
           AS replay_in_progress,
       bool_or(request.settled_at IS NULL AND EXISTS (
           SELECT 1 FROM {schema}.delivery_attempts AS attempt
           WHERE attempt.delivery_id = request.id AND attempt.certainty = 'uncertain')) AS uncertain,
       min(request.not_after) FILTER (WHERE request.id = family.asked) AS not_after
FROM family JOIN {schema}.delivery_requests AS request ON request.id = family.id
GROUP BY family.asked;

-- name: replays_of_delivery
-- The replays of one delivery, oldest first.
SELECT id, idempotency_key, status, attempts, created_at, terminal_at
FROM {schema}.delivery_requests WHERE replay_of = $1 ORDER BY created_at, id;

-- name: discard
-- A dead letter that nobody will replay any more; one that is discarded already stays as it is.
UPDATE {schema}.delivery_dead_letter
SET discarded_at = $2, discard_reason = $3, discarded_by = $4, replay_eligible = false
WHERE id = $1 AND discarded_at IS NULL
RETURNING delivery_id;

-- name: lock_delivery
-- Holds a delivery still while somebody decides about it.
SELECT status FROM {schema}.delivery_requests WHERE id = $1 FOR UPDATE;

-- name: quarantine
-- Sets a delivery aside by hand, with a copy of everything that was tried.
INSERT INTO {schema}.delivery_dead_letter
    (id, delivery_id, request_id, origin_butler, channel, intent, target_identity, quarantine_reason, error_class,
     error_summary, total_attempts, first_attempt_at, last_attempt_at, original_envelope, all_attempt_outcomes,
     created_at)
SELECT $2, request.id, request.request_id, request.origin_butler, request.channel, request.intent,
       request.target_identity, 'manually_quarantined', coalesce(request.terminal_error_class, 'internal_error'), $3,
       tried.attempts, tried.first_at, tried.last_at, request.envelope, tried.outcomes, $4
FROM {schema}.delivery_requests AS request, LATERAL (
    SELECT count(*) AS attempts, min(started_at) AS first_at, max(started_at) AS last_at,
           coalesce(jsonb_agg(to_jsonb(attempt) - 'id' - 'delivery_id' ORDER BY attempt_number), '[]') AS outcomes
    FROM {schema}.delivery_attempts AS attempt WHERE attempt.delivery_id = request.id) AS tried
WHERE request.id = $1
ON CONFLICT (delivery_id) DO UPDATE
SET quarantine_reason = excluded.quarantine_reason, error_class = excluded.error_class,
    error_summary = excluded.error_summary, total_attempts = excluded.total_attempts,
    last_attempt_at = excluded.last_attempt_at, all_attempt_outcomes = excluded.all_attempt_outcomes,
    discarded_at = NULL, discard_reason = NULL, discarded_by = NULL, replay_eligible = true,
    created_at = excluded.created_at
RETURNING id;

-- name: mark_dead_lettered
-- The delivery of a dead letter has ended.
UPDATE {schema}.delivery_requests
SET status = 'dead_lettered', terminal_at = coalesce(terminal_at, $2), updated_at = $2, tell_owner = false,
    terminal_error_class = coalesce(terminal_error_class, 'internal_error'),
    terminal_error_message = coalesce(terminal_error_message, $3),
    terminal_retryable = coalesce(terminal_retryable, false)
WHERE id = $1;

-- name: add_decision
-- One more line in the list of decisions about a delivery.
UPDATE {schema}.delivery_requests SET decisions = decisions || $2::jsonb WHERE id = $1;

-- name: channel_states
-- The circuits and stances of some providers.
SELECT * FROM {schema}.channel_states WHERE name = ANY($1::text[]);

-- name: buckets
-- Some budgets by name, as far as they were ever drawn from.
SELECT name, capacity, refill_per_second, tokens, updated_at FROM {schema}.rate_buckets WHERE name = ANY($1::text[]);

-- name: throttles
-- The windows of some providers that are still open, those about everybody first.
SELECT scope, channel, until, reason FROM {schema}.throttles
WHERE channel = ANY($1::text[]) AND until > $2 ORDER BY scope <> channel, until DESC, scope;

-- name: recipients_at_limit
-- Recipients who may not get another message at present, the emptiest first, and how many there are.
SELECT name, capacity, refill_per_second, tokens, updated_at, count(*) OVER () AS at_limit
FROM {schema}.rate_buckets AS bucket
WHERE full_at > $1 AND EXISTS (SELECT 1 FROM unnest($2::text[]) AS prefix WHERE starts_with(name, prefix))
  AND tokens + greatest(0, extract(epoch FROM $1 - updated_at)) * refill_per_second < 1 - 1e-9
ORDER BY tokens + greatest(0, extract(epoch FROM $1 - updated_at)) * refill_per_second, name
LIMIT $3;

-- name: in_flight
-- How many deliveries count against the limit of what may be under way, as admission counts them.
SELECT count(*) FROM {schema}.delivery_requests WHERE status IN ('pending', 'in_progress') AND admitted;

-- name: queue
-- What is on its way or waits for somebody, by channel, status and whether it passed admission; an index for each half.
SELECT channel, status, admitted, count(*) AS deliveries, min(created_at) AS oldest
FROM (
    SELECT channel, identity_scope, status, admitted, created_at FROM {schema}.delivery_requests
    WHERE status IN ('pending', 'in_progress', 'awaiting_retry')
    UNION ALL
    SELECT channel, identity_scope, status, admitted, created_at FROM {schema}.delivery_requests
    WHERE status IN ('pending_missing_identifier', 'pending_approval', 'uncertain')
) AS present
WHERE ($1::text IS NULL OR channel = $1) AND ($2::text IS NULL OR identity_scope = $2)
GROUP BY channel, status, admitted;

-- name: delivery_stats
-- What became of the deliveries of a window, overall and by one property; latencies are raw, from asking to the end.
WITH wanted AS (
    SELECT CASE $3::text WHEN 'channel' THEN channel WHEN 'intent' THEN intent WHEN 'origin_butler' THEN origin_butler
                         WHEN 'outcome' THEN status WHEN 'error_class' THEN terminal_error_class END AS key,
           status, attempts, extract(epoch FROM terminal_at - created_at) * 1000 AS took_ms
    FROM {schema}.delivery_requests WHERE created_at >= $1 AND created_at < $2
)
SELECT grouping(key) = 1 AS overall, key, count(*) AS total,
       count(*) FILTER (WHERE status = 'delivered') AS delivered,
       count(*) FILTER (WHERE status = 'failed') AS failed,
       count(*) FILTER (WHERE status = 'dead_lettered') AS dead_lettered,
       count(*) FILTER (WHERE status = 'uncertain') AS uncertain,
       count(*) FILTER (WHERE status = 'expired') AS expired,
       count(*) FILTER (WHERE attempts > 0) AS attempted,
       count(*) FILTER (WHERE attempts > 1) AS retried,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY took_ms) FILTER (WHERE status = 'delivered') AS p50_ms,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY took_ms) FILTER (WHERE status = 'delivered') AS p95_ms
FROM wanted
GROUP BY GROUPING SETS ((), (key))
ORDER BY grouping(key) DESC, count(*) DESC, key;

-- name: provider_latencies
-- How long the providers took for the attempts at the deliveries of a window, overall and by one property.
WITH wanted AS (
    SELECT CASE $3::text WHEN 'channel' THEN channel WHEN 'intent' THEN intent WHEN 'origin_butler' THEN origin_butler
                         WHEN 'outcome' THEN status WHEN 'error_class' THEN terminal_error_class END AS key,
           attempt.latency_ms
    FROM {schema}.delivery_requests AS request
    JOIN {schema}.delivery_attempts AS attempt ON attempt.delivery_id = request.id
    WHERE request.created_at >= $1 AND request.created_at < $2
)
SELECT grouping(key) = 1 AS overall, key,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY latency_ms) AS provider_p50_ms,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY latency_ms) AS provider_p95_ms
FROM wanted
GROUP BY GROUPING SETS ((), (key));

-- name: requests_at_the_door
-- How the requests of a window fared before they became deliveries; whole minutes.
SELECT outcome, sum(requests)::bigint AS requests FROM {schema}.admission_outcomes
WHERE minute >= date_trunc('minute', $1::timestamptz) AND minute < $2 GROUP BY outcome;

-- name: recipient_rules
-- Recipients with a rule, by channel and address, from a place in the list on.
SELECT channel, target, rule, moved_to, reason, decided_by, since FROM {schema}.recipient_rules
WHERE ($1::text IS NULL OR channel = $1) AND ($2::text IS NULL OR (channel, target) > ($2, $3::text))
ORDER BY channel, target
LIMIT $4;

-- name: recipient_rule
-- What was decided about one recipient.
SELECT channel, target, rule, moved_to, reason, decided_by, since FROM {schema}.recipient_rules
WHERE channel = $1 AND target = $2;

-- name: suppress
-- From now on nothing is sent to this recipient, whatever was decided before.
INSERT INTO {schema}.recipient_rules (channel, target, rule, reason, decided_by, since)
VALUES ($1, $2, 'suppressed', $3, $4, $5)
ON CONFLICT (channel, target) DO UPDATE
SET rule = excluded.rule, moved_to = NULL, reason = excluded.reason, decided_by = excluded.decided_by,
    since = excluded.since
RETURNING channel, target, rule, moved_to, reason, decided_by, since;

-- name: release
-- This recipient may be written to again.
DELETE FROM {schema}.recipient_rules WHERE channel = $1 AND target = $2
RETURNING channel, target, rule, moved_to, reason, decided_by, since;
