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
