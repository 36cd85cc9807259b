-- name: parked_delivery
-- One parked delivery, held while it is released.
SELECT * FROM {schema}.delivery_requests
WHERE id = $1 AND status IN ('pending_approval', 'pending_missing_identifier') FOR UPDATE;

-- name: missing_identifiers
-- Deliveries whose contact had no identifier for the channel and has one now.
SELECT request.id, request.action_id, request.contact_id, request.channel
FROM {schema}.delivery_requests AS request
WHERE request.status = 'pending_missing_identifier'
  AND EXISTS (SELECT 1 FROM shared.contact_info AS info
              WHERE info.contact_id = request.contact_id AND info.type = request.channel)
ORDER BY request.id LIMIT 100;

-- name: release_parked
-- Somebody approved it: it goes on, and still has to pass admission.
UPDATE {schema}.delivery_requests
SET status = 'pending', next_attempt_at = $2, updated_at = $2, tell_owner = false,
    decisions = decisions || jsonb_build_object('at', $2::timestamptz, 'rule', 'release', 'verdict', 'released', 'detail', $3::text)
WHERE id = $1 AND status = 'pending_approval';

-- name: address_parked
-- The contact's identifier is known now; the key it was parked under makes room for its proper one.
UPDATE {schema}.delivery_requests
SET status = 'pending_approval', target_identity = $2, address = $3, ordering_key = $4, idempotency_key = $5,
    updated_at = $6, tell_owner = false
WHERE id = $1 AND status = 'pending_missing_identifier';

-- name: rekey
-- A delivery takes its proper key.
UPDATE {schema}.delivery_requests SET idempotency_key = $2 WHERE id = $1;

-- name: await_approval
-- It has its address and waits for a person's approval.
UPDATE {schema}.delivery_requests
SET action_id = $2, tell_owner = true, updated_at = $3,
    decisions = decisions || jsonb_build_object(
        'at', $3::timestamptz, 'rule', 'approval', 'verdict', 'pending', 'detail', 'it needs a person''s approval')
WHERE id = $1;

-- name: close_parked
-- Nothing will come of it: rejected, expired, or sent by another way.
UPDATE {schema}.delivery_requests
SET status = $3, terminal_at = $2, updated_at = $2, tell_owner = false, terminal_error_class = 'validation_error',
    terminal_error_message = $4, terminal_retryable = false,
    decisions = decisions || jsonb_build_object('at', $2::timestamptz, 'rule', 'approval', 'verdict', $3::text, 'detail', $4::text)
WHERE id = $1 AND status IN ('pending_approval', 'pending_missing_identifier');

-- name: anything_to_tell
-- By channel and status, what waits for a person who was not told. Notices themselves are not told about.
SELECT DISTINCT channel, status FROM {schema}.delivery_requests
WHERE tell_owner
  AND NOT (origin_butler = 'messenger' AND coalesce(envelope->>'idempotency_key', '') LIKE 'notice:%');

-- name: to_tell
-- What waits for a person who was not told, oldest first.
SELECT id, status, channel, origin_butler, target_identity, contact_id, action_id
FROM {schema}.delivery_requests
WHERE tell_owner AND NOT (origin_butler = 'messenger' AND coalesce(envelope->>'idempotency_key', '') LIKE 'notice:%')
ORDER BY id
FOR UPDATE SKIP LOCKED;

-- name: told
-- The owner was told.
UPDATE {schema}.delivery_requests SET tell_owner = false WHERE id = ANY($1::uuid[]);

-- name: last_notice
-- When the owner was told something last.
SELECT max(created_at) FROM {schema}.delivery_requests
WHERE origin_butler = 'messenger' AND envelope->>'idempotency_key' LIKE 'notice:%';
