-- name: old_dead_letters
-- The next dead letters that were written long ago, held while it is decided about them.
SELECT id, delivery_id, discarded_at, created_at FROM {schema}.delivery_dead_letter
WHERE created_at < $1 AND (created_at, id) > ($2, $3::uuid)
ORDER BY created_at, id
LIMIT $4
FOR UPDATE;

-- name: arrivals
-- When the message of some deliveries arrived, be it as another of the same family; no row: it did not.
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
SELECT family.asked AS delivery_id, max(request.terminal_at) AS arrived_at
FROM family JOIN {schema}.delivery_requests AS request ON request.id = family.id
WHERE request.status = 'delivered'
GROUP BY family.asked;

-- name: remove_dead_letters
-- Dead letters that nobody needs any more.
DELETE FROM {schema}.delivery_dead_letter WHERE id = ANY($1::uuid[]);

-- name: hold_old_families
-- The next first deliveries that ended long ago, and their replays, held while it is decided about them.
WITH RECURSIVE old AS (
    SELECT id FROM {schema}.delivery_requests
    WHERE terminal_at < $1 AND (terminal_at, id) > ($2, $3::uuid) AND replay_of IS NULL
    ORDER BY terminal_at, id
    LIMIT $4
), family AS (
    SELECT id AS first_id, id FROM old
    UNION ALL
    SELECT family.first_id, replay.id
    FROM {schema}.delivery_requests AS replay JOIN family ON replay.replay_of = family.id
)
SELECT family.first_id, request.id, request.status, request.terminal_at, request.duplicate_detection
FROM family JOIN {schema}.delivery_requests AS request ON request.id = family.id
ORDER BY request.id
FOR UPDATE OF request;

-- name: with_dead_letter
-- Which of some deliveries have a dead letter, or are the replay that one names.
SELECT delivery_id AS id FROM {schema}.delivery_dead_letter WHERE delivery_id = ANY($1::uuid[])
UNION
SELECT last_replay_id FROM {schema}.delivery_dead_letter WHERE last_replay_id = ANY($1::uuid[]);

-- name: remove_deliveries
-- Deliveries with all that was tried and heard about them; how many of each.
WITH attempts AS (
    DELETE FROM {schema}.delivery_attempts WHERE delivery_id = ANY($1::uuid[]) RETURNING 1
), receipts AS (
    DELETE FROM {schema}.delivery_receipts WHERE delivery_id = ANY($1::uuid[]) RETURNING 1
), deliveries AS (
    DELETE FROM {schema}.delivery_requests WHERE id = ANY($1::uuid[]) RETURNING 1
)
SELECT (SELECT count(*) FROM deliveries) AS delivery, (SELECT count(*) FROM attempts) AS attempt,
       (SELECT count(*) FROM receipts) AS receipt;

-- name: remove_actions
-- Actions that were decided and done long ago, and hold no delivery that still goes on or answers for its key.
DELETE FROM {schema}.pending_actions WHERE id IN (
    SELECT action.id FROM {schema}.pending_actions AS action
    WHERE action.status IN ('rejected', 'expired', 'executed')
      AND coalesce(action.executed_at, action.decided_at, action.expires_at) < $1
      AND NOT EXISTS (SELECT 1 FROM {schema}.delivery_requests AS request
                      WHERE request.id = action.subject_id
                        AND (request.terminal_at IS NULL OR request.status = 'uncertain' OR request.duplicate_detection))
    LIMIT $2
    FOR UPDATE SKIP LOCKED)
RETURNING id;

-- name: retire_keys
-- Deliveries that ended long ago no longer answer for their keys, nor do the decisions about them.
WITH retired AS (
    UPDATE {schema}.delivery_requests
    SET idempotency_key = idempotency_key || '::retired-' || id, duplicate_detection = false
    WHERE id IN (SELECT id FROM {schema}.delivery_requests
                 WHERE terminal_at < $1 AND duplicate_detection AND status <> 'uncertain'
                 LIMIT 1000)
    RETURNING id
), decided AS (
    UPDATE {schema}.pending_actions SET request_key = request_key || '::retired-' || id
    WHERE subject_id IN (SELECT id FROM retired)
)
SELECT id FROM retired;

-- name: forget_idle_budgets
-- Buckets that are full again need no row; windows that closed neither.
WITH idle AS (DELETE FROM {schema}.rate_buckets WHERE full_at < $1 RETURNING name),
     closed AS (DELETE FROM {schema}.throttles WHERE until < $1 RETURNING scope)
SELECT (SELECT count(*) FROM idle) + (SELECT count(*) FROM closed);

-- name: forget_outcomes
-- Counts by the minute are kept for a while.
DELETE FROM {schema}.admission_outcomes WHERE minute < $1;
