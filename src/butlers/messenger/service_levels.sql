-- name: budget_windows
-- What providers made of us lately, per channel: events of the short and of the long window, each failure once.
-- $1 now, $2 start of the short window, $3 start of the long window.
WITH attempted AS (
    SELECT request.channel, request.identity_scope, attempt.started_at AS moment, attempt.outcome = 'sent' AS good
    FROM {schema}.delivery_attempts AS attempt
    JOIN {schema}.delivery_requests AS request ON request.id = attempt.delivery_id
    WHERE attempt.started_at > $3 AND attempt.started_at <= $1 AND attempt.completed_at IS NOT NULL
      -- Too late to be tried: no provider was asked.
      AND (attempt.outcome = 'sent' OR request.not_after IS NULL OR attempt.started_at <= request.not_after)
      AND (attempt.outcome = 'sent'
           OR attempt.certainty = 'uncertain'
           -- A crash of ours before anything left says nothing about the provider.
           OR (attempt.outcome <> 'lost' AND (
                   attempt.retryable OR attempt.error_class IN ('target_unavailable', 'timeout', 'internal_error'))))
      -- A recipient who blocked us, which the provider said once and for all.
      AND (attempt.outcome <> 'rejected' OR attempt.retryable OR NOT EXISTS (
              SELECT 1 FROM {schema}.recipient_rules AS rule
              WHERE rule.rule = 'suppressed' AND rule.target = request.target_identity
                AND rule.channel IN (request.channel, request.channel || '.' || request.identity_scope)))
), ended AS (
    SELECT request.channel, request.identity_scope, request.terminal_at AS moment, false AS good
    FROM {schema}.delivery_requests AS request
    WHERE request.terminal_at > $3 AND request.terminal_at <= $1 AND request.status IN ('failed', 'dead_lettered')
      AND request.terminal_error_class IN ('target_unavailable', 'timeout', 'internal_error')
      AND NOT EXISTS (SELECT 1 FROM {schema}.delivery_attempts AS attempt
                      WHERE attempt.delivery_id = request.id AND attempt.outcome IN ('rejected', 'failed'))
)
SELECT channel, identity_scope,
       count(*) FILTER (WHERE good AND moment > $2) AS short_good,
       count(*) FILTER (WHERE NOT good AND moment > $2) AS short_bad,
       count(*) FILTER (WHERE good) AS long_good,
       count(*) FILTER (WHERE NOT good) AS long_bad
FROM (SELECT * FROM attempted UNION ALL SELECT * FROM ended) AS events
GROUP BY channel, identity_scope;

-- name: channel_states
-- Circuit and stance of every channel that has either.
SELECT name, state, stance, burn_rate, stance_since, stance_reason FROM {schema}.channel_states;

-- name: long_budget
-- What was counted over hours and days, where something counts it.
SELECT name, window_s, good, bad, as_of FROM {schema}.long_budget ORDER BY name, window_s;

-- name: take_stance
-- Writes a judgement unless somebody else changed the stance since we looked; the row locks, so one of several wins.
INSERT INTO {schema}.channel_states AS known (name, stance, burn_rate, stance_since, updated_at, stance_reason)
VALUES ($1, $2, $3, $4, $5, $8)
ON CONFLICT (name) DO UPDATE
SET stance = excluded.stance, burn_rate = excluded.burn_rate, stance_since = excluded.stance_since,
    updated_at = excluded.updated_at, stance_reason = excluded.stance_reason
WHERE known.stance = $6 AND known.stance_since IS NOT DISTINCT FROM $7
RETURNING name;

-- name: unfinished_by_status
-- How many deliveries have not ended, and where they stand; two lists, because each has an index of its own.
SELECT status, count(*) AS deliveries, count(*) FILTER (WHERE admitted) AS admitted
FROM {schema}.delivery_requests
WHERE status IN ('pending', 'in_progress', 'awaiting_retry')
   OR status IN ('pending_missing_identifier', 'pending_approval', 'uncertain')
GROUP BY status;

-- name: endings
-- How deliveries ended that ended in [$1, $2), per channel; what is no fault of delivering is counted apart.
WITH ended AS (
    SELECT request.channel, request.identity_scope, request.status,
           request.status IN ('failed', 'dead_lettered') AND (
               request.terminal_error_class = 'validation_error'
               OR (request.terminal_error_class = 'target_unavailable' AND NOT request.terminal_retryable AND EXISTS (
                       SELECT 1 FROM {schema}.recipient_rules AS rule
                       WHERE rule.rule = 'suppressed' AND rule.target = request.target_identity
                         AND rule.channel IN (request.channel, request.channel || '.' || request.identity_scope)))
           ) IS TRUE AS excused
    FROM {schema}.delivery_requests AS request
    WHERE request.terminal_at >= $1 AND request.terminal_at < $2
      AND request.status IN ('delivered', 'failed', 'dead_lettered', 'expired', 'uncertain')
)
SELECT channel, identity_scope,
       count(*) FILTER (WHERE status = 'delivered') AS delivered,
       count(*) FILTER (WHERE status = 'failed' AND NOT excused) AS failed,
       count(*) FILTER (WHERE status = 'dead_lettered' AND NOT excused) AS dead_lettered,
       count(*) FILTER (WHERE status = 'expired') AS expired,
       count(*) FILTER (WHERE status = 'uncertain') AS uncertain,
       count(*) FILTER (WHERE excused) AS excused
FROM ended GROUP BY channel, identity_scope ORDER BY channel, identity_scope;

-- name: latencies
-- From the request to the provider's acceptance, of deliveries in [$1, $2) that waited for nobody's decision.
SELECT channel, identity_scope, intent, count(*) AS deliveries,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM terminal_at - created_at) * 1000) AS p50_ms,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM terminal_at - created_at) * 1000) AS p95_ms
FROM {schema}.delivery_requests
WHERE terminal_at >= $1 AND terminal_at < $2 AND status = 'delivered' AND action_id IS NULL AND settled_at IS NULL
GROUP BY channel, identity_scope, intent ORDER BY channel, identity_scope, intent;

-- name: duplicates
-- Of deliveries that were delivered in [$1, $2): what surely reached somebody twice, and what may have.
WITH RECURSIVE delivered AS (
    SELECT id, created_at FROM {schema}.delivery_requests
    WHERE terminal_at >= $1 AND terminal_at < $2 AND status = 'delivered'
), sends AS (
    SELECT attempt.delivery_id,
           count(*) FILTER (WHERE attempt.certainty = 'sent') AS sent,
           count(*) FILTER (WHERE attempt.certainty = 'uncertain') AS uncertain
    FROM {schema}.delivery_attempts AS attempt JOIN delivered ON delivered.id = attempt.delivery_id
    GROUP BY attempt.delivery_id
), ascent AS (
    -- Every replay up to the delivery that it descends from; keys would not do, they are retired in time.
    SELECT id, replay_of AS ancestor FROM {schema}.delivery_requests WHERE replay_of IS NOT NULL
    UNION ALL
    SELECT ascent.id, parent.replay_of FROM ascent
    JOIN {schema}.delivery_requests AS parent ON parent.id = ascent.ancestor
    WHERE parent.replay_of IS NOT NULL
), family AS (
    SELECT member.id, ascent.ancestor AS root, member.created_at, member.status, root.status AS root_status
    FROM ascent
    JOIN {schema}.delivery_requests AS root ON root.id = ascent.ancestor AND root.replay_of IS NULL
    JOIN {schema}.delivery_requests AS member ON member.id = ascent.id
)
SELECT (SELECT count(*) FROM delivered) AS delivered,
       (SELECT coalesce(sum(sent - 1) FILTER (WHERE sent > 1), 0)::bigint FROM sends) AS sent_again,
       (SELECT count(*) FROM delivered JOIN family AS late USING (id)
        WHERE late.root_status = 'delivered' OR EXISTS (
            SELECT 1 FROM family AS early
            WHERE early.root = late.root AND early.status = 'delivered'
              AND (early.created_at, early.id) < (late.created_at, late.id))
       ) AS delivered_again,
       (SELECT count(*) FROM sends WHERE sent > 0 AND uncertain > 0) AS possible;

-- name: admissions
-- How requests fared at the door in the minutes of [$1, $2), per channel; refusals by the rules $3 alone.
SELECT channel,
       coalesce(sum(requests) FILTER (WHERE outcome = 'admitted'), 0)::bigint AS admitted,
       coalesce(sum(requests) FILTER (WHERE outcome = 'rejected' AND rule = ANY($3::text[])), 0)::bigint AS rejected
FROM {schema}.admission_outcomes
WHERE minute >= date_trunc('minute', $1::timestamptz) AND minute < $2
GROUP BY channel ORDER BY channel;

-- name: rejections
-- Which of the rules $3 rejected in the minutes of [$1, $2).
SELECT channel, rule, sum(requests)::bigint AS requests
FROM {schema}.admission_outcomes
WHERE minute >= date_trunc('minute', $1::timestamptz) AND minute < $2 AND outcome = 'rejected'
  AND rule = ANY($3::text[])
GROUP BY channel, rule ORDER BY channel, rule;

-- name: dead_letters
-- What was set aside in [$1, $2), per channel.
SELECT channel, count(*) AS dead_letters, count(*) FILTER (WHERE discarded_at IS NOT NULL) AS discarded
FROM {schema}.delivery_dead_letter
WHERE created_at >= $1 AND created_at < $2
GROUP BY channel ORDER BY channel;

-- name: replays
-- How the replays ended that ended in [$1, $2).
SELECT count(*) AS ended, count(*) FILTER (WHERE status = 'delivered') AS delivered
FROM {schema}.delivery_requests
WHERE terminal_at >= $1 AND terminal_at < $2 AND replay_of IS NOT NULL
  AND status IN ('delivered', 'failed', 'dead_lettered', 'expired', 'uncertain');

-- name: doubts
-- Deliveries with an attempt in [$1, $2) that may have been sent, and of how many of them that is still not known: they
-- were not delivered since, and neither a person nor the provider has said anything about the last doubt.
SELECT request.channel, request.identity_scope, count(*) AS uncertain,
       count(*) FILTER (WHERE request.status <> 'delivered' AND request.settled_at IS NULL) AS unsettled
FROM {schema}.delivery_requests AS request
WHERE request.id IN (SELECT attempt.delivery_id FROM {schema}.delivery_attempts AS attempt
                     WHERE attempt.started_at >= $1 AND attempt.started_at < $2 AND attempt.certainty = 'uncertain')
GROUP BY request.channel, request.identity_scope ORDER BY request.channel, request.identity_scope;
