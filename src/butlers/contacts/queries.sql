-- name: resolve
-- The identifier of a contact on a channel: the primary one first, then the oldest.
SELECT value FROM {schema}.contact_info
WHERE contact_id = $1 AND type = $2
ORDER BY is_primary DESC NULLS LAST, created_at ASC
LIMIT 1;

-- name: resolve_secret
-- The same for a credential, which counts only when it is marked as one.
SELECT value FROM {schema}.contact_info
WHERE contact_id = $1 AND type = $2 AND secured
ORDER BY is_primary DESC NULLS LAST, created_at ASC
LIMIT 1;

-- name: owner
-- The person this system works for.
SELECT id, name, preferred_channel, timezone FROM {schema}.contacts WHERE is_owner;

-- name: contact
-- One contact.
SELECT id, name, preferred_channel, timezone FROM {schema}.contacts WHERE id = $1;

-- name: ensure_owner
-- Name the owner; a second call only renames.
INSERT INTO {schema}.contacts (id, name, is_owner, preferred_channel, created_at, updated_at)
VALUES ($1, $2, true, $3, $4, $4)
ON CONFLICT (is_owner) WHERE is_owner
DO UPDATE SET name = excluded.name, preferred_channel = excluded.preferred_channel, updated_at = excluded.updated_at
RETURNING id;

-- name: set_primary_info
-- The configured identifier becomes the primary one of its type.
WITH others AS (
    UPDATE {schema}.contact_info SET is_primary = false WHERE contact_id = $2 AND type = $3 AND value <> $4
)
INSERT INTO {schema}.contact_info (id, contact_id, type, value, label, is_primary, created_at)
VALUES ($1, $2, $3, $4, 'configured', true, $5)
ON CONFLICT (type, value) DO UPDATE SET contact_id = excluded.contact_id, is_primary = true;

-- name: is_owner_identity
-- Whether the person who has this identity on a channel is the owner; no row: no person has it.
SELECT contact.is_owner
FROM {schema}.contact_info AS info JOIN {schema}.contacts AS contact ON contact.id = info.contact_id
WHERE info.type = $1 AND lower(info.value) = lower($2) AND NOT info.secured
ORDER BY contact.is_owner DESC
LIMIT 1;

-- name: owner_writes_by
-- Whether the owner has an identity on a channel that a message can come from; a Telegram user is a number, while a name
-- or a group is only where to write to.
SELECT EXISTS (
    SELECT FROM {schema}.contact_info AS info JOIN {schema}.contacts AS contact ON contact.id = info.contact_id
    WHERE contact.is_owner AND info.type = $1 AND NOT info.secured AND (info.type <> 'telegram' OR info.value ~ '^[0-9]+$'));

-- name: contact_of_identity
-- Who has this identity on a channel.
SELECT contact_id FROM {schema}.contact_info WHERE type = $1 AND lower(value) = lower($2) AND NOT secured LIMIT 1;

-- name: add_contact
-- A person.
INSERT INTO {schema}.contacts (id, name, preferred_channel, created_at, updated_at) VALUES ($1, $2, $3, $4, $4);

-- name: keep_owner
-- The owner as it is, or a new one.
INSERT INTO {schema}.contacts AS known (id, name, is_owner, preferred_channel, created_at, updated_at)
VALUES ($1, $2, true, $3, $4, $4)
ON CONFLICT (is_owner) WHERE is_owner
DO UPDATE SET preferred_channel = coalesce(known.preferred_channel, excluded.preferred_channel), updated_at = excluded.updated_at
RETURNING id;

-- name: add_identity
-- An identity of a person, the primary one when there is no other; another person's becomes this person's.
INSERT INTO {schema}.contact_info (id, contact_id, type, value, label, is_primary, created_at)
SELECT $1, $2, $3, $4, 'paired',
       NOT EXISTS (SELECT FROM {schema}.contact_info WHERE contact_id = $2 AND type = $3 AND NOT secured), $5
ON CONFLICT (type, value) DO UPDATE SET contact_id = excluded.contact_id;

-- name: remove_identity
-- The identity is no person's any more; the owner's stays.
DELETE FROM {schema}.contact_info AS info USING {schema}.contacts AS contact
WHERE contact.id = info.contact_id AND NOT contact.is_owner
  AND info.type = $1 AND lower(info.value) = lower($2) AND NOT info.secured;

-- name: people
-- The people that references stand for, by the place of the reference; two rows at most for each, because two say that
-- it is ambiguous.
SELECT reference.place, contact.id, contact.name, contact.timezone, contact.locale, contact.preferred_channel,
       ARRAY(SELECT DISTINCT info.type FROM {schema}.contact_info AS info
             WHERE info.contact_id = contact.id AND NOT info.secured) AS channels
FROM unnest($1::integer[], $2::uuid[], $3::boolean[], $4::text[], $5::text[], $6::text[])
     AS reference (place, id, owner, channel, identity, name)
CROSS JOIN LATERAL (
    SELECT id FROM {schema}.contacts WHERE id = reference.id
    UNION ALL
    SELECT id FROM {schema}.contacts WHERE is_owner AND reference.owner
    UNION ALL
    SELECT named.id FROM (
        SELECT id FROM {schema}.contacts WHERE lower(name) = lower(reference.name) LIMIT 2) AS named
    UNION ALL
    SELECT addressed.contact_id FROM (
        SELECT DISTINCT contact_id FROM {schema}.contact_info
        WHERE type = reference.channel AND lower(value) = lower(reference.identity) AND NOT secured
        LIMIT 2) AS addressed
) AS found
JOIN {schema}.contacts AS contact ON contact.id = found.id
ORDER BY reference.place, contact.id;
