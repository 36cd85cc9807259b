-- name: register_butler
-- Store what a butler says of itself; registering always makes it eligible.
INSERT INTO {schema}.butler_registry
    (name, endpoint_url, transport, description, triggers, required_information, capabilities, modules,
     route_timeout_s, last_seen_at, registered_at, eligibility_updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10, $10)
ON CONFLICT (name) DO UPDATE
SET endpoint_url = excluded.endpoint_url, transport = excluded.transport, description = excluded.description,
    triggers = excluded.triggers, required_information = excluded.required_information,
    capabilities = excluded.capabilities, modules = excluded.modules, route_timeout_s = excluded.route_timeout_s,
    last_seen_at = excluded.last_seen_at, registered_at = excluded.registered_at, eligibility_state = 'active',
    quarantined_at = NULL, quarantine_reason = NULL, eligibility_updated_at = excluded.eligibility_updated_at;

-- name: lock_butler
-- The present state of a butler, locked until the transaction ends.
SELECT eligibility_state FROM {schema}.butler_registry WHERE name = $1 FOR UPDATE;

-- name: lock_butlers
-- The state and the last sign of life of every butler, locked until the transaction ends.
SELECT name, eligibility_state, last_seen_at, liveness_ttl_seconds FROM {schema}.butler_registry ORDER BY name FOR UPDATE;

-- name: touch_butler
-- A sign of life.
UPDATE {schema}.butler_registry SET last_seen_at = $2 WHERE name = $1 RETURNING eligibility_state;

-- name: set_eligibility
-- Change the state only from the state that was seen.
UPDATE {schema}.butler_registry
SET eligibility_state = $3, eligibility_updated_at = $4,
    quarantined_at = CASE WHEN $3 = 'quarantined' THEN $4::timestamptz END,
    quarantine_reason = CASE WHEN $3 = 'quarantined' THEN $5 END
WHERE name = $1 AND eligibility_state = $2
RETURNING name;

-- name: log_eligibility
-- Why a butler is or is not routable, for later.
INSERT INTO {schema}.butler_eligibility_log (id, butler, previous, new, reason, observed_at)
VALUES ($1, $2, $3, $4, $5, $6);

-- name: list_butlers
-- The registry.
SELECT * FROM {schema}.butler_registry ORDER BY name;

-- name: hold_butler
-- Take a butler out of service, unless an operator has already.
UPDATE {schema}.butler_registry SET held = $2 WHERE name = $1 AND held IS NULL RETURNING eligibility_state;

-- name: release_butler
-- Put a butler back that was held.
UPDATE {schema}.butler_registry SET held = NULL WHERE name = $1 AND held IS NOT NULL RETURNING eligibility_state;

-- name: butler_held
-- Whether there is such a butler, and who holds it.
SELECT held FROM {schema}.butler_registry WHERE name = $1;

-- name: history_of_butler
-- Why a butler was or was not routable, newest first, before a cursor.
SELECT id, previous, new, reason, observed_at FROM {schema}.butler_eligibility_log
WHERE butler = $1 AND ($2::uuid IS NULL OR id < $2)
ORDER BY observed_at DESC, id DESC
LIMIT $3;
