-- name: delivery_by_id
-- One delivery of a channel, held until the receipt is written.
SELECT id, channel, target_identity, status FROM {schema}.delivery_requests WHERE id = $1 AND channel = $2 FOR UPDATE;

-- name: deliveries_by_provider_id
-- What a provider's own name for a message stands for; its names may repeat, so there can be more than one.
SELECT DISTINCT receipt.delivery_id, receipt.part
FROM {schema}.delivery_receipts AS receipt
JOIN {schema}.delivery_requests AS request ON request.id = receipt.delivery_id
WHERE receipt.provider_delivery_id = $1 AND request.channel = $2
ORDER BY receipt.delivery_id, receipt.part
LIMIT 2;

-- name: provider_id_of_part
-- What the provider calls a part that it is known to have; no row: nothing is known of it.
SELECT provider_delivery_id FROM {schema}.delivery_receipts
WHERE delivery_id = $1 AND part = $2 AND receipt_type <> 'bounced'
ORDER BY received_at, id
LIMIT 1;

-- name: record_receipt
-- A receipt is kept once; only a bounce may still become a permanent one.
INSERT INTO {schema}.delivery_receipts AS known
    (id, delivery_id, part, provider_delivery_id, receipt_type, received_at, metadata)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (delivery_id, part, receipt_type) DO UPDATE
SET metadata = excluded.metadata, received_at = excluded.received_at
WHERE excluded.metadata @> '{"permanent": true}' AND NOT known.metadata @> '{"permanent": true}'
RETURNING known.id;

-- name: settle
-- What became of a delivery whose last attempt was left uncertain; nothing else is overruled by a receipt.
UPDATE {schema}.delivery_requests AS request
SET status = $2, settled_by = 'provider receipt', settled_at = $3, terminal_at = coalesce(terminal_at, $3),
    terminal_error_class = $4, terminal_error_message = $5, terminal_retryable = $6, tell_owner = false, updated_at = $3
WHERE id = $1
  AND (status = 'uncertain'
       OR (status = 'awaiting_retry'
           AND (SELECT certainty FROM {schema}.delivery_attempts AS attempt WHERE attempt.delivery_id = request.id
                ORDER BY attempt_number DESC LIMIT 1) = 'uncertain'))
RETURNING id;

-- name: is_reported
-- Whether the provider reported a part behind those that our worker saw accepted.
SELECT EXISTS (
    SELECT 1 FROM {schema}.delivery_receipts
    WHERE delivery_id = $1 AND receipt_type <> 'bounced' AND metadata @> '{"reported": true}'
      AND part > (SELECT coalesce(max(part), 0) FROM {schema}.delivery_receipts
                  WHERE delivery_id = $1 AND NOT metadata @> '{"reported": true}'));

-- name: suppress_recipient
-- Nothing more goes to an address that the provider says is dead; a rule that is there already stays.
INSERT INTO {schema}.recipient_rules (channel, target, rule, reason, decided_by, since)
VALUES ($1, $2, 'suppressed', $3, 'provider', $4)
ON CONFLICT (channel, target) DO NOTHING
RETURNING channel;

-- name: note_decision
-- One more line for whoever asks why.
UPDATE {schema}.delivery_requests SET decisions = decisions || $2, updated_at = $3 WHERE id = $1;
