-- name: anything_released
-- Is there anything to admit? Asked before the door is locked for it.
SELECT EXISTS (SELECT 1 FROM {schema}.delivery_requests
               WHERE NOT admitted AND status = 'pending' AND next_attempt_at <= $1);

-- name: released
-- Deliveries that somebody released and that still have to pass admission.
SELECT id, channel, identity_scope, target_identity, origin_butler, intent, settled_at
FROM {schema}.delivery_requests
WHERE NOT admitted AND status = 'pending' AND next_attempt_at <= $1
ORDER BY rank, next_attempt_at, id
LIMIT $2
FOR UPDATE SKIP LOCKED;

-- name: turn_away
-- A released delivery whose recipient must not be written to any more; what was sent of it is said.
UPDATE {schema}.delivery_requests AS request
SET status = 'failed', terminal_at = $2, updated_at = $2, terminal_error_class = 'validation_error',
    terminal_error_message = $3::text || coalesce((
        SELECT '; already sent: part ' || string_agg(receipt.part::text, ', ' ORDER BY receipt.part)
        FROM {schema}.delivery_receipts AS receipt
        WHERE receipt.delivery_id = request.id AND receipt.receipt_type = 'sent'), ''),
    terminal_retryable = false,
    decisions = decisions || jsonb_build_object('at', $2::timestamptz, 'rule', 'recipient', 'verdict', 'refused', 'detail', $3::text)
WHERE id = $1;

-- name: admit_released
-- They passed and may be sent.
UPDATE {schema}.delivery_requests SET admitted = true, updated_at = $2 WHERE id = ANY($1::uuid[]);

-- name: put_off_released
-- They did not pass: ask again when the rule said there would be room. A rule that says so again is noted once.
UPDATE {schema}.delivery_requests AS request
SET next_attempt_at = later.moment, updated_at = $3::timestamptz,
    decisions = CASE
        WHEN request.decisions->-1->>'rule' = later.rule AND request.decisions->-1->>'verdict' = 'wait' THEN request.decisions
        ELSE request.decisions || jsonb_build_object(
            'at', $3::timestamptz, 'rule', later.rule, 'verdict', 'wait', 'detail', later.reason)
    END
FROM unnest($1::uuid[], $2::timestamptz[], $4::text[], $5::text[]) AS later (id, moment, rule, reason)
WHERE request.id = later.id;

-- name: lock_dead_letter
-- A dead letter that is about to be replayed.
SELECT * FROM {schema}.delivery_dead_letter WHERE id = $1 FOR UPDATE;

-- name: hold_family
-- One replay at a time of everything that descends from the same first delivery: the delivery of a dead letter and those
-- it descends from, before the letter itself, as whoever sets a delivery aside takes them.
WITH RECURSIVE ancestors AS (
    SELECT request.id, request.replay_of
    FROM {schema}.delivery_requests AS request
    JOIN {schema}.delivery_dead_letter AS letter ON letter.delivery_id = request.id
    WHERE letter.id = $1
    UNION
    SELECT parent.id, parent.replay_of
    FROM {schema}.delivery_requests AS parent JOIN ancestors AS child ON parent.id = child.replay_of
)
SELECT id FROM {schema}.delivery_requests WHERE id IN (SELECT ancestors.id FROM ancestors) ORDER BY id FOR UPDATE;

-- name: whole_request
-- A delivery with all its columns, for whoever makes a new one from it.
SELECT * FROM {schema}.delivery_requests WHERE id = $1;

-- name: count_replay
-- One more replay of a dead letter.
UPDATE {schema}.delivery_dead_letter SET replay_count = $2, last_replay_id = $3 WHERE id = $1;

-- name: lock_uncertain
-- An uncertain delivery that is about to be settled, also one that was set aside, with the part that is in doubt and
-- the parts on record.
SELECT request.*,
       (SELECT (attempt.provider_response->>'part')::integer FROM {schema}.delivery_attempts AS attempt
        WHERE attempt.delivery_id = request.id AND attempt.certainty = 'uncertain'
        ORDER BY attempt.attempt_number DESC LIMIT 1) AS part_in_doubt,
       (SELECT jsonb_object_agg(receipt.part, receipt.provider_delivery_id)
        FROM {schema}.delivery_receipts AS receipt
        WHERE receipt.delivery_id = request.id AND receipt.receipt_type <> 'bounced') AS parts_sent
FROM {schema}.delivery_requests AS request
WHERE request.id = $1
  AND (request.status = 'uncertain' OR (
       request.status = 'dead_lettered' AND request.settled_at IS NULL AND EXISTS (
           SELECT 1 FROM {schema}.delivery_attempts AS doubt
           WHERE doubt.delivery_id = request.id AND doubt.certainty = 'uncertain')))
FOR UPDATE;

-- name: settle_uncertain
-- A person's word about an uncertain delivery: it arrived, or it goes out again through the same admission.
UPDATE {schema}.delivery_requests
SET status = $2, settled_by = $3, settled_at = $4, updated_at = $4, tell_owner = false, admitted = $2 <> 'pending',
    next_attempt_at = $4, terminal_at = CASE WHEN $2 = 'pending' THEN NULL ELSE $4::timestamptz END,
    terminal_error_class = NULL, terminal_error_message = NULL, terminal_retryable = NULL,
    decisions = decisions || jsonb_build_object('at', $4::timestamptz, 'rule', 'settle', 'verdict', $5::text, 'detail', 'by ' || $3::text)
WHERE id = $1;

-- name: status_of
-- Where a delivery stands.
SELECT status FROM {schema}.delivery_requests WHERE id = $1;
