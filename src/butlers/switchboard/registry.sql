-- name: hold_butler
-- Take a butler out of service, unless somebody has already.
UPDATE {schema}.butler_registry SET held = $2 WHERE name = $1 AND held IS NULL RETURNING eligibility_state;

-- name: release_butler
-- Put a butler back that was held.
UPDATE {schema}.butler_registry SET held = NULL WHERE name = $1 AND held IS NOT NULL RETURNING eligibility_state;

-- name: butler_held
-- Whether there is such a butler, and who holds it.
SELECT held FROM {schema}.butler_registry WHERE name = $1;

-- name: note_hold
-- The history says it, too.
INSERT INTO {schema}.butler_eligibility_log (id, butler, previous, new, reason, observed_at)
VALUES ($1, $2, $3, $4, $5, $6);

-- name: history_of_butler
-- Why a butler was or was not routable, newest first, before a cursor.
SELECT id, previous, new, reason, observed_at FROM {schema}.butler_eligibility_log
WHERE butler = $1 AND ($2::uuid IS NULL OR id < $2)
ORDER BY observed_at DESC, id DESC
LIMIT $3;
