-- name: grant_permission
-- Let somebody send or receive.
INSERT INTO {schema}.entitlements (subject_id, permission, granted_at) VALUES ($1, $2, $3)
ON CONFLICT (subject_id, permission) DO NOTHING;

-- name: revoke_permission
-- Take one permission back.
DELETE FROM {schema}.entitlements WHERE subject_id = $1 AND permission = $2;

-- name: set_preferences
-- What a person wants, replacing what was stored.
INSERT INTO {schema}.preferences (subject_id, document, updated_at) VALUES ($1, $2::text::jsonb, $3)
ON CONFLICT (subject_id) DO UPDATE SET document = excluded.document, updated_at = excluded.updated_at;

-- name: set_defaults
-- What holds for an organization or the whole system, replacing what was stored.
INSERT INTO {schema}.defaults (scope, document, updated_at) VALUES ($1, $2::text::jsonb, $3)
ON CONFLICT (scope) DO UPDATE SET document = excluded.document, updated_at = excluded.updated_at;

-- name: permissions_of
-- All permissions of some people.
SELECT subject_id, array_agg(permission) AS permissions FROM {schema}.entitlements
WHERE subject_id = ANY($1::text[]) GROUP BY subject_id;

-- name: preferences_of
-- The documents of some people, as text.
SELECT subject_id, document::text AS document FROM {schema}.preferences WHERE subject_id = ANY($1::text[]);

-- name: defaults_of
-- The documents of some scopes, as text.
SELECT scope, document::text AS document FROM {schema}.defaults WHERE scope = ANY($1::text[]);

-- name: take_turn
-- One at a time, until this transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0));

-- name: booked_minutes
-- How many messages of a sender stand in each minute from a moment on.
SELECT date_trunc('minute', scheduled_at, 'UTC') AS minute, count(*) AS messages FROM {schema}.scheduled_messages
WHERE sender_id = $1 AND scheduled_at >= $2
GROUP BY 1;

-- name: insert_message
-- Keep a message; nothing happens when its id is known.
INSERT INTO {schema}.messages (id, sender_id, document, created_at) VALUES ($1, $2, $3::text::jsonb, $4)
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: is_same_message
-- Whether a known message says the same.
SELECT document = $2::text::jsonb FROM {schema}.messages WHERE id = $1;

-- name: insert_scheduled
-- Put one message to some people into the queue.
INSERT INTO {schema}.scheduled_messages
    (dedupe_key, message_id, recipient_id, sender_id, channel, scheduled_at, priority, created_at)
SELECT key, $1, recipient, $2, channel, moment, $3, $4
FROM unnest($5::text[], $6::text[], $7::text[], $8::timestamptz[]) AS each (key, recipient, channel, moment);

-- name: insert_blocked
-- Keep why some people do not get a message.
INSERT INTO {schema}.blocked_recipients (message_id, recipient_id, reason, detail, created_at)
SELECT $1, recipient, reason, detail, $2
FROM unnest($3::text[], $4::text[], $5::text[]) AS each (recipient, reason, detail);

-- name: scheduled_of
-- Who of some people a message is scheduled for, and how.
SELECT recipient_id, channel, scheduled_at FROM {schema}.scheduled_messages
WHERE message_id = $1 AND recipient_id = ANY($2::text[]);

-- name: blocked_of
-- Who of some people a message is not scheduled for, and why.
SELECT recipient_id, reason, detail FROM {schema}.blocked_recipients
WHERE message_id = $1 AND recipient_id = ANY($2::text[]);
