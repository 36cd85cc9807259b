-- name: record_request
-- The intent becomes durable before any provider byte is sent; a known key changes nothing.
INSERT INTO {schema}.delivery_requests
    (id, idempotency_key, request_id, origin_butler, channel, intent, target_identity, ordering_key, message, subject,
     envelope, source_event, priority, not_after, duplicate_detection, next_attempt_at, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $16, $16)
ON CONFLICT (idempotency_key) DO NOTHING
RETURNING id;

-- name: request_by_key
-- The delivery that owns an idempotency key.
SELECT * FROM {schema}.delivery_requests WHERE idempotency_key = $1;

-- name: request_by_id
-- One delivery with what its provider calls it.
SELECT request.*,
       (SELECT provider_delivery_id FROM {schema}.delivery_receipts AS receipt
        WHERE receipt.delivery_id = request.id AND receipt_type = 'sent' ORDER BY part LIMIT 1) AS provider_delivery_id
FROM {schema}.delivery_requests AS request WHERE id = $1;

-- name: claim_due
-- Due deliveries, the oldest of each conversation only, so that nothing overtakes.
WITH due AS (
    SELECT id FROM {schema}.delivery_requests AS candidate
    WHERE status IN ('pending', 'awaiting_retry') AND next_attempt_at <= $1
      AND NOT EXISTS (
          SELECT 1 FROM {schema}.delivery_requests AS earlier
          WHERE earlier.ordering_key = candidate.ordering_key AND earlier.id < candidate.id
            AND earlier.status IN ('pending', 'in_progress', 'awaiting_retry'))
    ORDER BY next_attempt_at, id
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.delivery_requests AS request
SET status = 'in_progress', claim_token = $3, claimed_by = $4, lease_expires_at = $5,
    attempts = request.attempts + 1, updated_at = $1
FROM due WHERE request.id = due.id
RETURNING request.*;

-- name: begin_attempt
-- An attempt is on record before it is made.
INSERT INTO {schema}.delivery_attempts (id, delivery_id, attempt_number, worker, started_at)
VALUES ($1, $2, $3, $4, $5);

-- name: end_attempt
-- How an attempt went and how sure we are.
UPDATE {schema}.delivery_attempts
SET completed_at = $2, latency_ms = $3, outcome = $4, certainty = $5, error_class = $6, error_message = $7,
    retryable = $8, provider_response = $9
WHERE id = $1;

-- name: settle_request
-- The delivery's next state, written only by the holder of the claim.
UPDATE {schema}.delivery_requests
SET status = $3, next_attempt_at = coalesce($4, next_attempt_at), terminal_error_class = $5,
    terminal_error_message = $6, terminal_retryable = $7, terminal_at = $8, claim_token = NULL, lease_expires_at = NULL,
    updated_at = $9
WHERE id = $1 AND claim_token = $2 AND status = 'in_progress'
RETURNING id;

-- name: record_receipt
-- What the provider calls the message.
INSERT INTO {schema}.delivery_receipts (id, delivery_id, part, provider_delivery_id, receipt_type, received_at, metadata)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (delivery_id, part, receipt_type) DO NOTHING;

-- name: renew_claims
-- Keep what this worker is still sending.
UPDATE {schema}.delivery_requests SET lease_expires_at = $2
WHERE claim_token = ANY($1::uuid[]) AND status = 'in_progress';

-- name: claim_abandoned
-- Deliveries whose worker died while it held them, with the attempt that has no outcome.
WITH lost AS (
    SELECT id FROM {schema}.delivery_requests
    WHERE status = 'in_progress' AND lease_expires_at <= $1 AND id <> ALL($6::uuid[])
    ORDER BY lease_expires_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE {schema}.delivery_requests AS request
    SET claim_token = $3, claimed_by = $4, lease_expires_at = $5, updated_at = $1
    FROM lost WHERE request.id = lost.id
    RETURNING request.*
)
SELECT taken.*, attempt.id AS attempt_id, attempt.worker AS attempt_worker, attempt.started_at AS attempt_started_at
FROM taken LEFT JOIN {schema}.delivery_attempts AS attempt
     ON attempt.delivery_id = taken.id AND attempt.attempt_number = taken.attempts AND attempt.completed_at IS NULL;

-- name: next_due
-- When there is something to send or to rescue next.
SELECT min(moment) FROM (
    SELECT min(next_attempt_at) AS moment FROM {schema}.delivery_requests AS candidate
    WHERE status IN ('pending', 'awaiting_retry')
      AND NOT EXISTS (
          SELECT 1 FROM {schema}.delivery_requests AS earlier
          WHERE earlier.ordering_key = candidate.ordering_key AND earlier.id < candidate.id
            AND earlier.status IN ('pending', 'in_progress', 'awaiting_retry'))
    UNION ALL
    SELECT min(lease_expires_at) FROM {schema}.delivery_requests WHERE status = 'in_progress'
) AS moments;

-- name: open_attempts_of
-- Does any attempt of a worker still wait for its evidence?
SELECT count(*) FROM {schema}.delivery_attempts WHERE worker = $1 AND completed_at IS NULL;

-- name: deliveries_of_request
-- All deliveries of one request, oldest first.
SELECT id, origin_butler, channel, intent, target_identity, status, attempts, idempotency_key, terminal_error_class,
       terminal_error_message, created_at, terminal_at
FROM {schema}.delivery_requests WHERE request_id = $1 ORDER BY id;

-- name: attempts_of_deliveries
-- All attempts of some deliveries, in order.
SELECT delivery_id, attempt_number, started_at, completed_at, latency_ms, outcome, certainty, error_class,
       error_message, retryable
FROM {schema}.delivery_attempts WHERE delivery_id = ANY($1::uuid[]) ORDER BY delivery_id, attempt_number;

-- name: receipts_of_deliveries
-- All receipts of some deliveries, in order.
SELECT delivery_id, part, provider_delivery_id, receipt_type, received_at
FROM {schema}.delivery_receipts WHERE delivery_id = ANY($1::uuid[]) ORDER BY delivery_id, part;

-- name: counts_by_status
-- How many deliveries stand where.
SELECT status, count(*) AS deliveries FROM {schema}.delivery_requests GROUP BY status ORDER BY status;
