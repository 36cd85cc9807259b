-- name: record_refusal
-- One row per sender; the same event handed in again is not counted twice. Only its sender and reason are kept, never
-- what was written. Returns how many codes the sender has tried in vain, this time included.
INSERT INTO {schema}.refused_senders AS known
    (id, channel, endpoint, sender, display_name, reason, messages, wrong_codes, last_event, first_at, last_at)
VALUES ($1, $2, $3, $4, $5, $6, 1, $8, $7, $9, $9)
ON CONFLICT (channel, endpoint, sender) DO UPDATE
    SET display_name = excluded.display_name, reason = excluded.reason, last_at = excluded.last_at,
        messages = known.messages + CASE WHEN known.last_event = excluded.last_event THEN 0 ELSE 1 END,
        wrong_codes = known.wrong_codes + excluded.wrong_codes, last_event = excluded.last_event
RETURNING wrong_codes;

-- name: wrong_codes_of
-- How many codes a sender has tried in vain.
SELECT wrong_codes FROM {schema}.refused_senders WHERE channel = $1 AND endpoint = $2 AND sender = $3;

-- name: list_refused
-- Refused senders, those seen first last.
SELECT id, channel, endpoint, sender, display_name, reason, messages, first_at, last_at
FROM {schema}.refused_senders
WHERE ($1::uuid IS NULL OR id < $1) AND ($2::text IS NULL OR channel = $2)
ORDER BY id DESC
LIMIT $3;

-- name: forget_refusals
-- Rows that are not needed any more: older than a moment, or beyond the newest so many.
DELETE FROM {schema}.refused_senders
WHERE last_at < $1 OR id IN (SELECT id FROM {schema}.refused_senders ORDER BY last_at DESC OFFSET $2);

-- name: forget_refusal
-- The sender is served from now on.
DELETE FROM {schema}.refused_senders WHERE channel = $1 AND sender = $2;

-- name: start_pairing
-- A stranger's code, once and for good: a stranger that had one gets no other. Nothing is returned when there is one already, or
-- when so many others got one since a moment.
INSERT INTO {schema}.sender_pairings (id, kind, channel, endpoint, sender, display_name, code, created_at, expires_at)
SELECT $1, 'sender', $2, $3, $4, $5, $6, $7, $8
WHERE (SELECT count(*) FROM {schema}.sender_pairings WHERE kind = 'sender' AND created_at > $9) < $10
ON CONFLICT DO NOTHING
RETURNING id;

-- name: pairing_of_sender
-- A stranger's code, if it was given one.
SELECT id, code, told_at, used_at, expires_at FROM {schema}.sender_pairings
WHERE kind = 'sender' AND channel = $1 AND endpoint = $2 AND sender = $3;

-- name: pairing_told
-- The stranger has its code.
UPDATE {schema}.sender_pairings SET told_at = $2 WHERE id = $1 AND told_at IS NULL;

-- name: open_pairing
-- The stranger's code, for as long as it is good. The message that used it may come again: a crash swallowed its answer.
SELECT id, channel, endpoint, sender, display_name, used_at FROM {schema}.sender_pairings
WHERE kind = 'sender' AND code = $1 AND (used_at IS NULL OR (used_by = $3 AND used_event = $4)) AND expires_at > $2
FOR UPDATE;

-- name: use_pairing
-- The code has done its work.
UPDATE {schema}.sender_pairings SET used_at = $2, used_by = $3, sender = coalesce(sender, $4), used_event = $5
WHERE id = $1 AND used_at IS NULL
RETURNING id;

-- name: owner_pairing
-- The code by which a chat becomes the owner's, as long as it is not used.
SELECT id, code, expires_at FROM {schema}.sender_pairings WHERE kind = 'owner' AND channel = $1 AND used_at IS NULL;

-- name: renew_owner_pairing
-- A code for the owner: the one that is good, or a new one in its place.
INSERT INTO {schema}.sender_pairings AS known (id, kind, channel, code, created_at, expires_at)
VALUES ($1, 'owner', $2, $3, $4, $5)
ON CONFLICT (channel) WHERE kind = 'owner' AND used_at IS NULL DO UPDATE
    SET code = CASE WHEN known.expires_at > $4 THEN known.code ELSE excluded.code END,
        expires_at = CASE WHEN known.expires_at > $4 THEN known.expires_at ELSE excluded.expires_at END
RETURNING code, expires_at;

-- name: list_pairings
-- Strangers and their codes, newest first.
SELECT id, channel, endpoint, sender, display_name, code, created_at, expires_at, told_at, used_at, used_by
FROM {schema}.sender_pairings
WHERE kind = 'sender' AND ($1::uuid IS NULL OR id < $1)
ORDER BY id DESC
LIMIT $2;
