-- name: set_preferences
-- What a person wants, replacing what was stored.
INSERT INTO {schema}.preferences (subject_id, document, updated_at) VALUES ($1, $2::text::jsonb, $3)
ON CONFLICT (subject_id) DO UPDATE SET document = excluded.document, updated_at = excluded.updated_at;

-- name: set_defaults
-- What holds for an organization or the whole system, replacing what was stored.
INSERT INTO {schema}.defaults (scope, document, updated_at) VALUES ($1, $2::text::jsonb, $3)
ON CONFLICT (scope) DO UPDATE SET document = excluded.document, updated_at = excluded.updated_at;

-- name: preferences_of
-- The documents of some people, as text.
SELECT subject_id, document::text AS document FROM {schema}.preferences WHERE subject_id = ANY($1::text[]);

-- name: defaults_of
-- The documents of some scopes, as text.
SELECT scope, document::text AS document FROM {schema}.defaults WHERE scope = ANY($1::text[]);

-- name: effective_permissions
-- What some subjects may and may not do in an organization: their own grants and denials, those of their roles, and
-- those of everyone.
SELECT subject.id AS subject_id, array_agg(DISTINCT entitlement.permission) AS permissions
FROM unnest($1::text[]) AS subject (id)
CROSS JOIN LATERAL (
    SELECT subject.id AS id
    UNION ALL
    SELECT 'role:everyone'
    UNION ALL
    SELECT 'role:' || membership.role FROM {schema}.memberships AS membership
    WHERE membership.subject_id = subject.id AND membership.organization_id IN ('', $2)
) AS holder
JOIN {schema}.entitlements AS entitlement
  ON entitlement.subject_id = holder.id AND entitlement.organization_id IN ('', $2)
GROUP BY subject.id;

-- name: add_entitlement
-- Grant or deny; no row comes back when that holds already.
INSERT INTO {schema}.entitlements (subject_id, permission, organization_id, granted_by, granted_at)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING
RETURNING subject_id;

-- name: remove_entitlement
-- Take a grant or a denial back; no row comes back when there was none.
DELETE FROM {schema}.entitlements WHERE subject_id = $1 AND permission = $2 AND organization_id = $3
RETURNING subject_id;

-- name: add_membership
-- Give a subject a role; no row comes back when it has the role already.
INSERT INTO {schema}.memberships (subject_id, role, organization_id, joined_at) VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING
RETURNING subject_id;

-- name: remove_membership
-- Take a role from a subject; no row comes back when it had none.
DELETE FROM {schema}.memberships WHERE subject_id = $1 AND role = $2 AND organization_id = $3
RETURNING subject_id;

-- name: list_entitlements
-- Grants and denials, of one subject or of all, behind the last one of the page before.
SELECT subject_id, permission, organization_id, granted_by, granted_at FROM {schema}.entitlements
WHERE ($1::text IS NULL OR subject_id = $1)
  AND ($2::text[] IS NULL OR (subject_id, permission, organization_id) > ($2[1], $2[2], $2[3]))
ORDER BY subject_id, permission, organization_id
LIMIT $3;

-- name: list_memberships
-- The roles of a subject, or the members of a role; at most so many.
SELECT subject_id, role, organization_id, joined_at FROM {schema}.memberships
WHERE subject_id = $1
UNION ALL
SELECT subject_id, role, organization_id, joined_at FROM {schema}.memberships
WHERE starts_with($1, 'role:') AND role = substr($1, 6)
ORDER BY subject_id, role, organization_id
LIMIT $2;

-- name: add_change
-- Record who changed what; no row comes back when this change is on record.
INSERT INTO {schema}.changes (id, subject_id, action, details, changed_by, changed_at)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: drop_old_changes
-- Only the last changes of a subject are kept.
DELETE FROM {schema}.changes AS change
WHERE change.subject_id = $1 AND change.id NOT IN (
    SELECT recent.id FROM {schema}.changes AS recent WHERE recent.subject_id = $1
    ORDER BY recent.changed_at DESC, recent.id DESC LIMIT $2);

-- name: changes_of
-- The last changes of a subject, newest first.
SELECT action, details, changed_by, changed_at FROM {schema}.changes WHERE subject_id = $1
ORDER BY changed_at DESC, id DESC LIMIT $2;

-- name: ensure_preferences
-- A row that can be locked, also for a person who has stored nothing.
INSERT INTO {schema}.preferences (subject_id, document, updated_at) VALUES ($1, '{}', $2)
ON CONFLICT (subject_id) DO NOTHING;

-- name: lock_preferences
-- The document of a person, as text, until this transaction ends nobody else's to change.
SELECT document::text FROM {schema}.preferences WHERE subject_id = $1 FOR UPDATE;
