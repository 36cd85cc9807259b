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
