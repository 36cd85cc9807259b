-- The rules of the books once more, each as a question of its own: what breaks it?
-- Tables: requests, routing, deliveries, attempts, receipts, table_rows (event, id, born); macros of the test: window_start(),
-- window_end(), cutoff(). Answers (rule, key, date).

CREATE TEMP TABLE parts AS
SELECT request_id, part ->> 'segment_id' AS segment_id, part ->> 'target_butler' AS butler,
       (part ->> 'success')::boolean AS success
FROM (SELECT request_id, unnest(from_json(outcomes::json, '["json"]')) AS part FROM requests WHERE outcomes IS NOT NULL)
WHERE part ->> 'skipped' IS NULL;

CREATE TEMP TABLE owned AS  -- attempts without those that were given back
SELECT one.* FROM attempts AS one LEFT JOIN deliveries AS delivery ON delivery.id = one.delivery_id
WHERE one.completed_at IS NOT NULL
   OR (NOT EXISTS (FROM attempts AS other
                   WHERE other.delivery_id = one.delivery_id AND other.attempt_number = one.attempt_number
                     AND other.change > one.change)
       AND (delivery.id IS NULL OR one.attempt_number <= delivery.attempts));

CREATE TEMP TABLE ripe_requests AS
SELECT *, lifecycle_state IN ('accepted', 'progress') AS is_open FROM requests
WHERE received_at >= window_start() AND received_at < window_end()
  AND CASE WHEN lifecycle_state IN ('parsed', 'errored') THEN updated_at <= cutoff()
           WHEN override_action IS NULL THEN received_at <= cutoff() AND coalesce(not_before <= cutoff(), true)
           ELSE updated_at <= cutoff() AND coalesce(not_before <= cutoff(), true) END;

CREATE TEMP TABLE days_deliveries AS
SELECT * FROM deliveries WHERE created_at >= window_start() AND created_at < window_end();

CREATE TEMP TABLE ripe_deliveries AS
SELECT * FROM days_deliveries
WHERE updated_at <= cutoff() AND (status NOT IN ('pending', 'awaiting_retry') OR next_attempt_at <= cutoff());

CREATE TEMP TABLE sent AS SELECT DISTINCT delivery_id AS id FROM owned WHERE outcome = 'sent';

CREATE TEMP TABLE lineage AS
WITH RECURSIVE up AS (
    SELECT id, id AS ancestor FROM deliveries
    UNION
    SELECT up.id, parent.replay_of FROM up JOIN deliveries AS parent ON parent.id = up.ancestor
    WHERE parent.replay_of IS NOT NULL
)
SELECT id, min(ancestor) AS root FROM up GROUP BY id;  -- ids are ordered by time

CREATE TEMP TABLE found (rule text, key text, born timestamptz);

INSERT INTO found SELECT 'request-left-open', request_id, received_at FROM ripe_requests WHERE is_open;
INSERT INTO found SELECT 'request-end-untimed', request_id, received_at FROM ripe_requests
WHERE (is_open AND final_state_at IS NOT NULL) OR (NOT is_open AND final_state_at IS NULL);
INSERT INTO found SELECT 'request-error-mismatch', request_id, received_at FROM ripe_requests
WHERE (lifecycle_state = 'errored' AND error_class IS NULL) OR (lifecycle_state = 'parsed' AND error_class IS NOT NULL);
INSERT INTO found SELECT 'request-without-outcome', request_id, received_at FROM ripe_requests
WHERE lifecycle_state = 'parsed' AND override_action IS DISTINCT FROM 'force_complete'
  AND request_id NOT IN (SELECT request_id FROM parts);
INSERT INTO found
SELECT DISTINCT CASE WHEN one.attempts <= 1 AND one.not_before IS NULL AND one.override_action IS NULL
                     THEN 'dispatch-unlogged' ELSE 'dispatch-line-lost' END, one.request_id, one.received_at
FROM ripe_requests AS one JOIN parts USING (request_id)
WHERE NOT one.is_open AND NOT EXISTS (
    FROM routing AS line WHERE line.request_id = one.request_id AND line.segment_id = parts.segment_id
      AND line.target_butler = parts.butler AND line.success = parts.success);
INSERT INTO found SELECT DISTINCT 'answer-missing', one.request_id, one.received_at
FROM ripe_requests AS one JOIN parts USING (request_id)
WHERE NOT one.is_open AND parts.success AND parts.butler NOT IN ('messenger', 'switchboard')
  AND NOT EXISTS (FROM deliveries WHERE request_id = one.request_id AND origin_butler = parts.butler);

INSERT INTO found SELECT 'delivery-left-open', id, created_at FROM ripe_deliveries WHERE status = 'in_progress';
INSERT INTO found SELECT 'delivery-overdue', id, created_at FROM ripe_deliveries
WHERE status IN ('pending', 'awaiting_retry');
INSERT INTO found SELECT 'delivery-end-untimed', id, created_at FROM ripe_deliveries
WHERE (terminal_at IS NOT NULL) <> (status IN ('delivered', 'failed', 'dead_lettered', 'expired', 'uncertain'));
INSERT INTO found SELECT 'delivery-error-missing', id, created_at FROM ripe_deliveries
WHERE status IN ('failed', 'dead_lettered', 'expired', 'uncertain') AND terminal_error_class IS NULL;
INSERT INTO found SELECT 'delivered-unattempted', id, created_at FROM ripe_deliveries
WHERE status = 'delivered' AND settled_at IS NULL AND id NOT IN (SELECT id FROM sent);
INSERT INTO found SELECT 'delivered-unreceipted', id, created_at FROM ripe_deliveries
WHERE status = 'delivered' AND id NOT IN (SELECT delivery_id FROM receipts WHERE receipt_type <> 'bounced');
INSERT INTO found SELECT 'attempts-miscounted', id, created_at FROM ripe_deliveries AS one
WHERE (SELECT count(*) FROM owned WHERE delivery_id = one.id) <> one.attempts
   OR (SELECT count(DISTINCT attempt_number) FROM owned WHERE delivery_id = one.id) <> one.attempts
   OR (SELECT max(attempt_number) FROM owned WHERE delivery_id = one.id) > one.attempts;
INSERT INTO found SELECT 'delivery-in-doubt', id, created_at FROM ripe_deliveries WHERE status = 'uncertain';
INSERT INTO found SELECT 'delivery-maybe-twice', id, created_at FROM ripe_deliveries
WHERE id IN (SELECT id FROM sent) AND id IN (SELECT delivery_id FROM owned WHERE certainty = 'uncertain');
INSERT INTO found SELECT 'delivery-sent-twice', id, created_at FROM days_deliveries AS one
WHERE (SELECT count(*) FROM owned WHERE delivery_id = one.id AND outcome = 'sent') > 1;
INSERT INTO found SELECT 'key-sent-twice', one.id, one.created_at
FROM days_deliveries AS one JOIN lineage USING (id)
WHERE one.id IN (SELECT id FROM sent) AND EXISTS (
    FROM deliveries AS other JOIN lineage AS others ON others.id = other.id
    WHERE other.id IN (SELECT id FROM sent) AND (other.created_at, other.id) < (one.created_at, one.id)
      AND (other.key_digest = one.key_digest OR others.root = lineage.root));
INSERT INTO found SELECT 'replay-without-lineage', one.id, one.created_at FROM ripe_deliveries AS one
WHERE one.replay_of >= (SELECT min(id) FROM deliveries) AND NOT EXISTS (
    FROM deliveries AS parent
    WHERE parent.id = one.replay_of AND parent.channel = one.channel AND parent.origin_butler = one.origin_butler
      AND parent.intent = one.intent AND parent.request_id IS NOT DISTINCT FROM one.request_id);

INSERT INTO found SELECT 'attempt-left-open', id, started_at FROM owned AS one
WHERE completed_at IS NULL AND started_at >= window_start() AND started_at < window_end() AND started_at <= cutoff()
  AND delivery_id IN (SELECT id FROM deliveries);
INSERT INTO found SELECT 'attempt-orphan', id, started_at FROM attempts
WHERE started_at >= window_start() AND started_at < window_end() AND started_at <= cutoff()
  AND delivery_id >= (SELECT min(id) FROM deliveries) AND delivery_id NOT IN (SELECT id FROM deliveries);
INSERT INTO found SELECT 'receipt-orphan', id, received_at FROM receipts
WHERE received_at >= window_start() AND received_at < window_end() AND received_at <= cutoff()
  AND delivery_id >= (SELECT min(id) FROM deliveries) AND delivery_id NOT IN (SELECT id FROM deliveries);
INSERT INTO found SELECT 'routing-orphan', id, created_at FROM routing
WHERE created_at >= window_start() AND created_at < window_end() AND created_at <= cutoff()
  AND request_id >= (SELECT min(request_id) FROM requests) AND request_id NOT IN (SELECT request_id FROM requests);

CREATE TEMP TABLE lake_rows AS
SELECT 'routing' AS event, id, created_at AS born FROM routing
UNION ALL SELECT 'receipts', id, received_at FROM receipts
UNION ALL SELECT 'attempts', id, started_at FROM attempts;

INSERT INTO found SELECT DISTINCT 'lake-misses-rows', event || ' ' || born::date, born::date FROM table_rows
WHERE (event, id) NOT IN (SELECT (event, id) FROM lake_rows);
INSERT INTO found SELECT DISTINCT 'lake-holds-more', event || ' ' || born::date, born::date FROM lake_rows
WHERE (event, id) NOT IN (SELECT (event, id) FROM table_rows) AND event IN (SELECT event FROM table_rows)
  AND born >= window_start() AND born < least(window_end(), cutoff())
  AND NOT (event = 'attempts' AND id IN (SELECT id FROM attempts WHERE completed_at IS NULL));

SELECT DISTINCT rule, key, born::date AS date FROM found;
