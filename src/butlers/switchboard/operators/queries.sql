-- name: capture
-- Set a failure aside with a copy of its message; a failure of the same part again is told on the same letter. Where one
-- success is enough and came, the others are not missed.
INSERT INTO {schema}.dead_letter AS letter
    (id, request_id, segment_id, subrequest_id, target_butler, failure_category, error_class, failure_reason, attempts,
     original_payload, request_context, replay_eligible, ineligible_reason, created_at, updated_at)
SELECT $3, message.request_id, $4, $5, $6, $7, $8, $9, coalesce($10, message.attempts),
       jsonb_build_object(
           'received_at', message.received_at, 'raw_payload', message.raw_payload,
           'normalized_text', message.normalized_text, 'attachments', message.attachments,
           'policy_tier', message.policy_tier, 'pinned_target', message.pinned_target,
           'dedupe_key', message.dedupe_key, 'submitted_by', message.submitted_by,
           'schema_version', message.schema_version, 'thread_key', message.thread_key,
           'routing_output', message.routing_output, 'dispatch_outcomes', message.dispatch_outcomes),
       message.request_context, $11::text IS NULL, $11, $12, $12
FROM {schema}.message_inbox AS message
WHERE message.request_id = $1 AND message.received_at = $2
  AND NOT (message.lifecycle_state = 'parsed' AND message.routing_output #>> '{plan,join}' = 'first_success')
ON CONFLICT (request_id, segment_id) DO UPDATE
SET subrequest_id = excluded.subrequest_id, target_butler = excluded.target_butler,
    failure_category = excluded.failure_category, error_class = excluded.error_class,
    failure_reason = excluded.failure_reason, attempts = letter.attempts + excluded.attempts,
    original_payload = excluded.original_payload, replay_eligible = excluded.replay_eligible,
    ineligible_reason = excluded.ineligible_reason,
    replay_outcome = CASE letter.replay_outcome WHEN 'pending' THEN 'errored' ELSE letter.replay_outcome END,
    resolution = NULL, resolved_at = NULL, updated_at = excluded.updated_at
RETURNING id;

-- name: settle_letters
-- The letters of a request that ended without these parts failing again: nothing is left to do about them.
UPDATE {schema}.dead_letter
SET replay_outcome = CASE replay_outcome WHEN 'pending' THEN $3 ELSE replay_outcome END,
    resolution = CASE $3 WHEN 'parsed' THEN coalesce(
        (SELECT override ->> 'action' FROM {schema}.message_inbox WHERE request_id = $1 LIMIT 1), 'parsed')
        ELSE 'superseded' END,
    resolved_at = $4, updated_at = $4
WHERE request_id = $1 AND resolved_at IS NULL AND NOT (segment_id = ANY($2::text[]));

-- name: stop_replays
-- An operator stopped the request: its letters stay open, and the replay under way is over.
UPDATE {schema}.dead_letter SET replay_outcome = 'cancelled', updated_at = $2
WHERE request_id = $1 AND replay_outcome = 'pending';

-- name: get_letter
-- One dead letter, whole.
SELECT id, request_id, nullif(segment_id, '') AS segment_id, subrequest_id, target_butler, failure_category,
       error_class, failure_reason, attempts, original_payload, request_context, replay_eligible, ineligible_reason,
       replay_count, replayed_request_id, replay_outcome, resolution, resolved_at, created_at, updated_at
FROM {schema}.dead_letter WHERE id = $1;

-- name: lock_letter
-- The same, held until the transaction ends.
SELECT id, request_id, error_class, original_payload, request_context, replay_eligible, ineligible_reason,
       replay_count, replay_outcome, resolution, resolved_at
FROM {schema}.dead_letter WHERE id = $1 FOR UPDATE;

-- name: mark_replay
-- A replay has begun.
UPDATE {schema}.dead_letter
SET replay_count = replay_count + 1, replayed_request_id = request_id, replay_outcome = 'pending', updated_at = $2
WHERE id = $1
RETURNING replay_count;

-- name: list_letters
-- Dead letters, newest first, behind a cursor; what they hold of the message stays out.
SELECT id, request_id, nullif(segment_id, '') AS segment_id, subrequest_id, target_butler, failure_category,
       error_class, failure_reason, attempts, request_context ->> 'source_channel' AS source_channel, replay_eligible,
       ineligible_reason, replay_count, replayed_request_id, replay_outcome, resolution, resolved_at, created_at,
       updated_at
FROM {schema}.dead_letter
WHERE ($1::uuid IS NULL OR request_id = $1)
  AND ($2::text IS NULL OR target_butler = $2)
  AND ($3::text IS NULL OR error_class = $3)
  AND ($4::text IS NULL OR failure_category = $4)
  AND ($5::timestamptz IS NULL OR created_at >= $5)
  AND ($6 OR resolved_at IS NULL)
  AND ($7::timestamptz IS NULL OR (created_at, id) < ($7, $8))
ORDER BY created_at DESC, id DESC
LIMIT $9;

-- name: lock_name
-- One at a time for whatever bears this name, until the transaction ends; what is looked up afterwards is the present.
SELECT pg_advisory_xact_lock(hashtextextended($1::text, 0));

-- name: lock_request
-- The present state of a request, held until the transaction ends.
SELECT request_id, received_at, policy_tier, request_context ->> 'source_channel' AS source_channel, lifecycle_state,
       lifecycle_error, routing_output, dispatch_outcomes, normalized_text, pinned_target, override
FROM {schema}.message_inbox WHERE request_id = $1 FOR UPDATE;

-- name: end_request
-- An operator ends a request, whichever worker holds it; a worker that comes back finds its claim gone.
UPDATE {schema}.message_inbox
SET lifecycle_state = $3, lifecycle_error = $4, override = $5, final_state_at = $6, claim_token = NULL,
    lease_expires_at = NULL, not_before = NULL, waiting_for = NULL, updated_at = $6,
    -- Its author is shown the end; where the channel cannot, the sweep that shows ends finds nothing to do.
    signal_pending = source_channel = ANY($7::text[])
WHERE request_id = $1 AND received_at = $2;

-- name: reopen_request
-- An operator puts a request back into the queue; what succeeded before stays settled.
UPDATE {schema}.message_inbox
SET lifecycle_state = 'accepted', lifecycle_error = NULL, pinned_target = $3, routing_output = $4,
    dispatch_outcomes = $5, aggregated_reply = NULL, override = $6, final_state_at = NULL, signal_pending = false,
    claim_token = NULL, lease_expires_at = NULL, attempts = 0, calls = 0, last_failure = NULL,
    not_before = NULL, waiting_for = NULL, updated_at = $7
WHERE request_id = $1 AND received_at = $2;

-- name: restore_request
-- A request whose month is gone, made again from the copy in its dead letter. It keeps its name and its context, where
-- the moment of its arrival stands; the row itself belongs to the present month.
INSERT INTO {schema}.message_inbox
    (request_id, received_at, request_context, raw_payload, normalized_text, attachments, policy_tier, pinned_target,
     dedupe_key, submitted_by, schema_version, source_channel, thread_key, routing_output, dispatch_outcomes, override,
     updated_at)
SELECT $1, $2, $3::jsonb, copy.raw_payload, copy.normalized_text, copy.attachments, copy.policy_tier, copy.pinned_target,
       copy.dedupe_key, copy.submitted_by, copy.schema_version, $3::jsonb ->> 'source_channel', copy.thread_key, $5, $6, $7, $2
FROM jsonb_to_record($4::jsonb) AS copy (
    raw_payload jsonb, normalized_text text, attachments jsonb, policy_tier text, pinned_target text,
    dedupe_key text, submitted_by text, schema_version text, thread_key text);

-- name: ended_request
-- A request as its author is shown it.
SELECT request_id, received_at, request_context, lifecycle_state, lifecycle_error, dispatch_outcomes, override,
       thread_key
FROM {schema}.message_inbox WHERE request_id = $1;

-- name: record_action
-- What an operator did or wanted to do.
INSERT INTO {schema}.operator_audit_log
    (id, action, request_id, operator, reason, payload, outcome, outcome_details, performed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: list_actions
-- What operators did, newest first, behind a cursor.
SELECT id, action, request_id, operator, reason, payload, outcome, outcome_details, performed_at,
       performed_at AS created_at
FROM {schema}.operator_audit_log
WHERE ($1::uuid IS NULL OR request_id = $1)
  AND ($2::text IS NULL OR operator = $2)
  AND ($3::text IS NULL OR action = $3)
  AND ($4::timestamptz IS NULL OR performed_at >= $4)
  AND ($5::timestamptz IS NULL OR (performed_at, id) < ($5, $6))
ORDER BY performed_at DESC, id DESC
LIMIT $7;

-- name: record_activity
-- One thing that a butler did.
INSERT INTO {schema}.dashboard_audit_log
    (id, butler, operation, request_summary, result, error, actor, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: list_activity
-- What butlers did, newest first, behind a cursor.
SELECT id, butler, operation, request_summary, result, error, actor, created_at
FROM {schema}.dashboard_audit_log
WHERE ($1::text IS NULL OR butler = $1)
  AND ($2::text IS NULL OR operation = $2)
  AND ($3::text IS NULL OR result = $3)
  AND ($4::timestamptz IS NULL OR created_at >= $4)
  AND ($5::timestamptz IS NULL OR (created_at, id) < ($5, $6))
ORDER BY created_at DESC, id DESC
LIMIT $7;
