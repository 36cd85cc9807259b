-- name: delivery_of_key
-- A mail without a receipt yet, whose answer was lost or is still awaited, by the key that its Message-ID is made of.
SELECT id FROM {schema}.delivery_requests
WHERE status = 'uncertain' AND channel = 'email'
  AND left(encode(sha256(convert_to(idempotency_key, 'UTF8')), 'hex'), 40) = $1
UNION ALL
SELECT id FROM {schema}.delivery_requests
WHERE status = 'in_progress' AND channel = 'email'
  AND left(encode(sha256(convert_to(idempotency_key, 'UTF8')), 'hex'), 40) = $1
UNION ALL
SELECT id FROM {schema}.delivery_requests
WHERE status = 'awaiting_retry' AND channel = 'email'
  AND left(encode(sha256(convert_to(idempotency_key, 'UTF8')), 'hex'), 40) = $1
LIMIT 1;
