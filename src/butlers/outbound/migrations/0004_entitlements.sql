-- Who may send and receive, by person, by role and by organization, and what was changed by whom.

ALTER TABLE {schema}.entitlements
    ADD COLUMN organization_id text NOT NULL DEFAULT '',      -- '': in every organization
    ADD COLUMN granted_by text NOT NULL DEFAULT 'system',
    DROP CONSTRAINT entitlements_pkey,
    ADD PRIMARY KEY (subject_id, permission, organization_id);

-- A role's own permissions are entitlements of the subject 'role:<name>'. Every subject has the role 'everyone'.
CREATE TABLE {schema}.memberships (
    subject_id      text        NOT NULL,
    role            text        NOT NULL,
    organization_id text        NOT NULL DEFAULT '',          -- '': in every organization
    joined_at       timestamptz NOT NULL,
    PRIMARY KEY (subject_id, role, organization_id)
);

CREATE INDEX memberships_of_role ON {schema}.memberships (role);

-- A fresh system lets everybody write and be written to. Without these two rows nobody may who has no grant. A system
-- that has stored grants decides by them who may, so it does not get these rows.
INSERT INTO {schema}.entitlements (subject_id, permission, granted_at)
SELECT 'role:everyone', permission, now()
FROM (VALUES ('messages:send:*'), ('messages:receive:*')) AS fresh (permission)
WHERE NOT EXISTS (SELECT FROM {schema}.entitlements);

CREATE TABLE {schema}.changes (
    id         uuid PRIMARY KEY,          -- of the request that asked for it, where there is one: it is done once
    subject_id text        NOT NULL,      -- a person, a role, or the scope of defaults
    action     text        NOT NULL,
    details    jsonb       NOT NULL,
    changed_by text        NOT NULL,
    changed_at timestamptz NOT NULL
);

CREATE INDEX changes_of_subject ON {schema}.changes (subject_id, changed_at DESC);

-- Whoever caches one of these tables listens to '<schema>_changes'. The payload is a JSON list: the table, and then the
-- keys that a statement has changed; the table alone when they are too many to name.
CREATE FUNCTION {schema}.announce_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    keys text[];
    payload text;
BEGIN
    IF TG_OP <> 'TRUNCATE' THEN
        EXECUTE format('SELECT array_agg(key) FROM (SELECT DISTINCT %I AS key FROM changed LIMIT 21) AS named', TG_ARGV[0])
        INTO keys;
        IF keys IS NULL THEN
            RETURN NULL;  -- no row was changed
        END IF;
    END IF;
    payload := to_jsonb(TG_TABLE_NAME::text || keys)::text;
    IF keys IS NULL OR cardinality(keys) > 20 OR octet_length(payload) > 7000 THEN
        payload := jsonb_build_array(TG_TABLE_NAME)::text;
    END IF;
    PERFORM pg_notify(TG_TABLE_SCHEMA || '_changes', payload);
    RETURN NULL;
END $$;

DO $$
DECLARE
    watched record;
BEGIN
    FOR watched IN
        SELECT * FROM (VALUES ('entitlements', 'subject_id'), ('memberships', 'subject_id'),
                              ('preferences', 'subject_id'), ('defaults', 'scope')) AS tables (name, key)
    LOOP
        EXECUTE format('CREATE TRIGGER announce_insert AFTER INSERT ON {schema}.%I REFERENCING NEW TABLE AS changed '
                       'FOR EACH STATEMENT EXECUTE FUNCTION {schema}.announce_change(%L)', watched.name, watched.key);
        EXECUTE format('CREATE TRIGGER announce_delete AFTER DELETE ON {schema}.%I REFERENCING OLD TABLE AS changed '
                       'FOR EACH STATEMENT EXECUTE FUNCTION {schema}.announce_change(%L)', watched.name, watched.key);
        EXECUTE format('CREATE TRIGGER announce_old AFTER UPDATE ON {schema}.%I REFERENCING OLD TABLE AS changed '
                       'FOR EACH STATEMENT EXECUTE FUNCTION {schema}.announce_change(%L)', watched.name, watched.key);
        EXECUTE format('CREATE TRIGGER announce_new AFTER UPDATE ON {schema}.%I REFERENCING NEW TABLE AS changed '
                       'FOR EACH STATEMENT EXECUTE FUNCTION {schema}.announce_change(%L)', watched.name, watched.key);
        EXECUTE format('CREATE TRIGGER announce_truncate AFTER TRUNCATE ON {schema}.%I '
                       'FOR EACH STATEMENT EXECUTE FUNCTION {schema}.announce_change()', watched.name);
    END LOOP;
END $$;
