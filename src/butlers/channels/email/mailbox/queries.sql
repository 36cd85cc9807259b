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

-- name: begin_mail
-- Count an attempt before the work begins; false: the mail is quarantined, by now or since earlier. The reason stands
-- there in advance, for an attempt whose process dies.
INSERT INTO {schema}.mail_attempts AS known
    (mailbox, uidvalidity, uid, size_bytes, arrived_at, attempts, reason, updated_at)
VALUES ($1, $2, $3, $4, $5, 1, $6, $7)
ON CONFLICT (mailbox, uidvalidity, uid) DO UPDATE
SET attempts = least(known.attempts + 1, $8),
    reason = CASE WHEN known.attempts >= $8 THEN known.reason ELSE excluded.reason END,
    quarantined_at = CASE WHEN known.attempts >= $8 THEN coalesce(known.quarantined_at, excluded.updated_at) END,
    updated_at = excluded.updated_at
RETURNING quarantined_at IS NULL;

-- name: fail_mail
-- Say why an attempt did not end well; true: it was the last one.
UPDATE {schema}.mail_attempts
SET reason = $4, updated_at = $5, quarantined_at = CASE WHEN attempts >= $6 THEN $5::timestamptz END
WHERE mailbox = $1 AND uidvalidity = $2 AND uid = $3
RETURNING quarantined_at IS NOT NULL;

-- name: give_mail_back
-- The attempt ended for a reason that is not the mail's: it does not count.
UPDATE {schema}.mail_attempts SET attempts = attempts - 1, updated_at = $4
WHERE mailbox = $1 AND uidvalidity = $2 AND uid = $3 AND attempts > 0 AND quarantined_at IS NULL;

-- name: end_mail
-- It was handled; also forgotten is what a process left behind that died between its work and this line.
DELETE FROM {schema}.mail_attempts
WHERE mailbox = $1 AND quarantined_at IS NULL
  AND ((uidvalidity = $2 AND uid = $3) OR updated_at < $4::timestamptz - interval '30 days');

-- name: quarantined_mails
-- Newest first, from where a page ended.
SELECT mailbox, uidvalidity, uid, attempts, reason, size_bytes, arrived_at, quarantined_at
FROM {schema}.mail_attempts
WHERE mailbox = $1 AND quarantined_at IS NOT NULL
  AND ($2::timestamptz IS NULL OR (quarantined_at, uidvalidity, uid) < ($2, $3::bigint, $4::bigint))
ORDER BY quarantined_at DESC, uidvalidity DESC, uid DESC
LIMIT $5;

-- name: quarantined_mail
-- Whether a mail is quarantined.
SELECT 1 FROM {schema}.mail_attempts
WHERE mailbox = $1 AND uidvalidity = $2 AND uid = $3 AND quarantined_at IS NOT NULL;

-- name: release_mail
-- An operator had it tried again, and it was handled.
DELETE FROM {schema}.mail_attempts WHERE mailbox = $1 AND uidvalidity = $2 AND uid = $3;
