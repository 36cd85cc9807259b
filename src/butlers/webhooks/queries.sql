-- name: lock_endpoints
-- One endpoint is created at a time, so that the limit on their number holds.
LOCK TABLE {schema}.endpoints IN SHARE ROW EXCLUSIVE MODE;

-- name: count_endpoints
-- How many endpoints there are.
SELECT count(*) FROM {schema}.endpoints;

-- name: create_endpoint
-- A new endpoint, enabled.
INSERT INTO {schema}.endpoints (id, url, description, event_types, secret, created_by, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $7);

-- name: list_endpoints
-- All endpoints, or the one with an id, oldest first, without their secrets.
SELECT id, url, description, event_types, enabled, disabled_reason, failing_since, delivered_at, old_secret_until,
       created_by, created_at, updated_at
FROM {schema}.endpoints
WHERE $1::uuid IS NULL OR id = $1
ORDER BY created_at, id;

-- name: subscriptions
-- What each enabled endpoint wants to be told.
SELECT id, event_types FROM {schema}.endpoints WHERE enabled;

-- name: target_of
-- Where and with which secrets an endpoint is called.
SELECT id, url, secret, old_secret, old_secret_until FROM {schema}.endpoints WHERE id = $1;

-- name: delete_endpoint
-- The endpoint and all its deliveries are gone.
DELETE FROM {schema}.endpoints WHERE id = $1 RETURNING id;

-- name: enable_endpoint
-- The endpoint is told of events from now on, and its failures are counted anew.
UPDATE {schema}.endpoints SET enabled = true, disabled_reason = NULL, failing_since = NULL, updated_at = $2
WHERE id = $1
RETURNING id;

-- name: disable_endpoint
-- The endpoint is told of nothing more. The first reason stays.
UPDATE {schema}.endpoints SET enabled = false, disabled_reason = coalesce(disabled_reason, $2), updated_at = $3
WHERE id = $1
RETURNING id;

-- name: rotate_secret
-- A new secret; the one of before signs beside it until a moment.
UPDATE {schema}.endpoints SET old_secret = secret, old_secret_until = $3, secret = $2, updated_at = $4
WHERE id = $1
RETURNING id;

-- name: forget_old_secrets
-- Secrets that sign nothing any more are not kept.
UPDATE {schema}.endpoints SET old_secret = NULL, old_secret_until = NULL WHERE old_secret_until <= $1;

-- name: endpoint_succeeded
-- The endpoint took an event. Written once a minute at most, because every delivery to the endpoint comes by here.
UPDATE {schema}.endpoints SET failing_since = NULL, delivered_at = $2::timestamptz
WHERE id = $1 AND (failing_since IS NOT NULL OR delivered_at IS NULL
                   OR delivered_at < $2::timestamptz - interval '1 minute');

-- name: endpoint_failed
-- The endpoint did not take an event: since when it has failed without a success.
UPDATE {schema}.endpoints SET failing_since = coalesce(failing_since, $2) WHERE id = $1
RETURNING failing_since;

-- name: publish
-- One delivery for each pair of event and endpoint; a pair that is there already stays as it is. Returns the new ones.
INSERT INTO {schema}.deliveries
    (id, endpoint_id, event_id, event_type, payload, next_attempt_at, created_at, updated_at)
SELECT pair.id, pair.endpoint_id, event.id, event.type, event.payload, $7, $7, $7
FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS pair (id, endpoint_id, event)
JOIN unnest($4::text[], $5::text[], $6::jsonb[]) WITH ORDINALITY AS event (id, type, payload, number)
    ON event.number = pair.event
JOIN {schema}.endpoints AS endpoint ON endpoint.id = pair.endpoint_id AND endpoint.enabled
ON CONFLICT (endpoint_id, event_id) DO NOTHING
RETURNING id;

-- name: claim_due
-- Due deliveries of enabled endpoints, oldest first, for each endpoint as many as it has free slots ($5). What a dead
-- worker held was due when it was claimed: the bound on the time holds for all, and ends the reading of the index. The
-- ids come as an array, because the planner takes that for short and does not read the whole table for it.
WITH due AS (
    SELECT chosen.id FROM {schema}.endpoints AS endpoint
    CROSS JOIN LATERAL (
        SELECT greatest($5::bigint - count(*), 0) AS slots FROM {schema}.deliveries AS busy
        WHERE busy.endpoint_id = endpoint.id AND busy.state = 'sending' AND busy.lease_expires_at > $1
    ) AS free
    CROSS JOIN LATERAL (
        SELECT work.id FROM {schema}.deliveries AS work
        WHERE work.endpoint_id = endpoint.id AND work.next_attempt_at <= $1 AND {claimable}
        ORDER BY work.next_attempt_at, work.id
        LIMIT free.slots
        FOR UPDATE SKIP LOCKED
    ) AS chosen
    WHERE endpoint.enabled
)
UPDATE {schema}.deliveries AS work SET {take}
FROM {schema}.endpoints AS endpoint
WHERE work.id = ANY(ARRAY(SELECT id FROM due)) AND endpoint.id = work.endpoint_id
RETURNING work.id, work.endpoint_id, work.event_type, work.payload, work.attempts,
          endpoint.url, endpoint.secret, endpoint.old_secret, endpoint.old_secret_until;

-- name: bury_deliveries_of_disabled
-- What waits for an endpoint that is disabled is set aside; an operator can replay it when the endpoint is enabled.
UPDATE {schema}.deliveries AS work
SET state = 'dead_lettered', claim_token = NULL, lease_expires_at = NULL, updated_at = $1,
    last_error = coalesce(work.last_error, 'the endpoint is disabled')
FROM {schema}.endpoints AS endpoint
WHERE endpoint.id = work.endpoint_id AND NOT endpoint.enabled
  AND (work.state = 'pending' OR (work.state = 'sending' AND work.lease_expires_at <= $1))
RETURNING work.id;

-- name: list_deliveries
-- Deliveries to an endpoint, newest first.
SELECT id, event_id, event_type, state, attempts, next_attempt_at, last_status, last_error, created_at, updated_at
FROM {schema}.deliveries
WHERE endpoint_id = $1 AND ($2::text IS NULL OR state = $2)
  AND ($3::timestamptz IS NULL OR (created_at, id) < ($3, $4::uuid))
ORDER BY created_at DESC, id DESC
LIMIT $5;

-- name: count_by_state
-- How many deliveries an endpoint has in each state.
SELECT state, count(*) AS number FROM {schema}.deliveries WHERE endpoint_id = $1 GROUP BY state;

-- name: replay_one
-- A delivery that ended is sent again under its id, with all its attempts.
UPDATE {schema}.deliveries SET state = 'pending', attempts = 0, next_attempt_at = $3, updated_at = $3
WHERE endpoint_id = $1 AND id = $2 AND state IN ('delivered', 'dead_lettered')
RETURNING id;

-- name: replay_dead_lettered
-- The same for all that was set aside and whose event came since a moment.
UPDATE {schema}.deliveries SET state = 'pending', attempts = 0, next_attempt_at = $3, updated_at = $3
WHERE endpoint_id = $1 AND state = 'dead_lettered' AND created_at >= $2
RETURNING id;

-- name: state_of_delivery
-- How one delivery of an endpoint stands.
SELECT state FROM {schema}.deliveries WHERE endpoint_id = $1 AND id = $2;

-- name: count_waiting
-- How many deliveries wait or are under way.
SELECT count(*) FROM {schema}.deliveries WHERE state IN ('pending', 'sending');

-- name: forget_deliveries
-- Deliveries that ended too long ago, a batch of them: delivered ones ($1) earlier than those that were set aside ($2).
DELETE FROM {schema}.deliveries WHERE id IN (
    SELECT id FROM {schema}.deliveries
    WHERE state IN ('delivered', 'dead_lettered') AND updated_at < $1::timestamptz
      AND (state = 'delivered' OR updated_at < $2::timestamptz)
    LIMIT $3)
RETURNING id;
