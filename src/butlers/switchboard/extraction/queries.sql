-- name: requests_to_read
-- Requests that went to a butler and were dealt with since a moment, and that were not looked through yet.
SELECT request_id, received_at, normalized_text, routing_output, request_context
FROM {schema}.message_inbox AS message
WHERE received_at >= $1 AND lifecycle_state = 'parsed'
  AND routing_output -> 'segments' @> jsonb_build_array(jsonb_build_object('butler', $2::text))
  AND NOT EXISTS (SELECT FROM {schema}.extraction_runs AS run WHERE run.request_id = message.request_id)
ORDER BY received_at
LIMIT $3;

-- name: claim_run
-- The process that writes this line first has looked the request through.
INSERT INTO {schema}.extraction_runs (request_id, extractor, found, created_at)
VALUES ($1, $2, $3, $4)
ON CONFLICT (request_id) DO NOTHING
RETURNING request_id;

-- name: add_extraction
-- One thing that was learned: decided by rule when it is sure, else to be decided by a person.
INSERT INTO {schema}.extraction_queue
    (id, request_id, position, signal_type, confidence, contact_hint, data, preview, sender, source_channel,
     source_endpoint, status, decided_by, decided_at, expires_at, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16);

-- name: log_extraction
-- What happened to something that was learned.
INSERT INTO {schema}.extraction_log
    (id, request_id, extraction_id, event, signal_type, confidence, actor, preview, created_at)
SELECT $1, request_id, id, $3, signal_type, confidence, $4, preview, $5
FROM {schema}.extraction_queue WHERE id = $2;

-- name: undispatched
-- Confirmed and not yet recorded by its butler, oldest first.
SELECT id, request_id, position, signal_type, contact_hint, data, sender, source_channel, source_endpoint, attempts
FROM {schema}.extraction_queue
WHERE status = 'confirmed' AND dispatched_at IS NULL AND (not_before IS NULL OR not_before <= $1)
ORDER BY created_at
LIMIT $2;

-- name: mark_dispatched
-- Its butler has recorded it.
UPDATE {schema}.extraction_queue SET dispatched_at = $2, attempts = attempts + 1 WHERE id = $1 AND dispatched_at IS NULL
RETURNING id;

-- name: mark_undispatched
-- Its butler could not record it now.
UPDATE {schema}.extraction_queue SET attempts = attempts + 1, not_before = $2 WHERE id = $1;

-- name: mark_refused
-- Its butler will not record it, however often it is asked.
UPDATE {schema}.extraction_queue SET status = 'refused', attempts = attempts + 1
WHERE id = $1 AND status = 'confirmed' AND dispatched_at IS NULL
RETURNING id;

-- name: decide_extraction
-- A person's word on something that waits, once.
UPDATE {schema}.extraction_queue SET status = $2, decided_by = $3, decided_at = $4
WHERE id = $1 AND status = 'pending' AND expires_at > $4
RETURNING id;

-- name: expire_extractions
-- What no person decided in time.
UPDATE {schema}.extraction_queue SET status = 'expired', decided_by = 'rule', decided_at = $1
WHERE status = 'pending' AND expires_at <= $1
RETURNING id;

-- name: get_extraction
-- One of them, whole.
SELECT id, request_id, signal_type, confidence, contact_hint, data, preview, status, decided_by, decided_at,
       dispatched_at, expires_at, created_at
FROM {schema}.extraction_queue WHERE id = $1;

-- name: list_extractions
-- Newest first, before a place, of one status or of all.
SELECT id, request_id, signal_type, confidence, contact_hint, data, preview, status, decided_by, decided_at,
       dispatched_at, expires_at, created_at
FROM {schema}.extraction_queue
WHERE ($1::text IS NULL OR status = $1) AND ($2::uuid IS NULL OR id < $2)
ORDER BY created_at DESC, id DESC
LIMIT $3;
