-- name: lock_template
-- Lets one writer of a template work at a time, until its transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('outbound template ' || $1, 0));

-- name: latest_template
-- The latest version of a template.
SELECT id, version, document, created_by, created_at FROM {schema}.templates
WHERE id = $1 ORDER BY version DESC LIMIT 1;

-- name: template_version
-- One version of a template.
SELECT id, version, document, created_by, created_at FROM {schema}.templates WHERE id = $1 AND version = $2;

-- name: latest_version
-- The number of the latest version of a template; nothing when there is none.
SELECT version FROM {schema}.templates WHERE id = $1 ORDER BY version DESC LIMIT 1;

-- name: insert_template
-- Stores a version.
INSERT INTO {schema}.templates (id, version, document, created_by, created_at) VALUES ($1, $2, $3, $4, $5);

-- name: list_templates
-- Every template behind a name in its latest version, by name.
SELECT DISTINCT ON (id) id, version, document, created_by, created_at FROM {schema}.templates
WHERE $1::text IS NULL OR id > $1
ORDER BY id, version DESC LIMIT $2;

-- name: versions_of
-- The numbers of a template's versions, newest first.
SELECT version FROM {schema}.templates WHERE id = $1 ORDER BY version DESC LIMIT $2;
