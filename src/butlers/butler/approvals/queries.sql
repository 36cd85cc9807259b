-- name: insert_action
-- A deed begins to wait; a repeat of the same request changes nothing.
INSERT INTO {schema}.pending_actions (id, request_key, tool_name, tool_args, summary, needs_person, subject_id,
                                      requested_by, requested_role, requested_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (request_key) DO NOTHING
RETURNING id;

-- name: action_of_key
-- What an earlier request of the same key left.
SELECT id, status, expires_at FROM {schema}.pending_actions WHERE request_key = $1;

-- name: get_action
-- One action, whole.
SELECT id, tool_name, tool_args, summary, status, needs_person, subject_id, requested_by, requested_role, requested_at,
       expires_at, decided_by, decided_at, decision_reason, rule_id, result, executed_at, attempts
FROM {schema}.pending_actions WHERE id = $1;

-- name: lock_action
-- One action, held until the decision about it is committed.
SELECT id, tool_name, tool_args, summary, status, needs_person, subject_id, requested_by, requested_role, requested_at,
       expires_at, decided_by, decided_at, decision_reason, rule_id, result, executed_at, attempts
FROM {schema}.pending_actions WHERE id = $1 FOR UPDATE;

-- name: list_actions
-- Newest first, before a cursor; without arguments and results, which may be long.
SELECT id, tool_name, summary, status, needs_person, subject_id, requested_by, requested_at, expires_at, decided_by,
       decided_at, decision_reason, rule_id, executed_at, attempts
FROM {schema}.pending_actions
WHERE ($1::text IS NULL OR status = $1) AND ($2::text IS NULL OR tool_name = $2) AND ($3::uuid IS NULL OR id < $3)
ORDER BY id DESC
LIMIT $4;

-- name: count_actions
-- How many there are, by state and tool, and how urgent they are.
SELECT status, tool_name, count(*) AS actions, min(requested_at) AS oldest, min(expires_at) AS next_expiry
FROM {schema}.pending_actions GROUP BY status, tool_name;

-- name: decide_action
-- A person's word.
UPDATE {schema}.pending_actions SET status = $2, decided_by = $3, decided_at = $4, decision_reason = $5 WHERE id = $1;

-- name: stale_actions
-- Actions whose time has passed, but for those already seen.
SELECT id FROM {schema}.pending_actions
WHERE status = 'pending' AND expires_at <= $1 AND id <> ALL($2::uuid[])
ORDER BY expires_at
LIMIT $3;

-- name: expire_action
-- Nobody decided in time.
UPDATE {schema}.pending_actions SET status = 'expired' WHERE id = $1;

-- name: execute_action
-- What an approved action held back has happened.
UPDATE {schema}.pending_actions SET status = 'executed', result = $2, executed_at = $3
WHERE id = $1 AND status = 'approved'
RETURNING tool_name;

-- name: unexecuted_actions
-- Approved actions of these tools that nobody holds.
SELECT id FROM {schema}.pending_actions AS work
WHERE {claimable} AND tool_name = ANY($2::text[])
ORDER BY id
LIMIT $3;

-- name: note_rule
-- Which rule was made from an action.
UPDATE {schema}.pending_actions SET rule_id = $2 WHERE id = $1;

-- name: insert_rule
-- A new rule.
INSERT INTO {schema}.approval_rules (id, tool_name, arg_constraints, description, expires_at, max_uses, created_by,
                                     created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: live_rules
-- Rules of a tool that may still allow something.
SELECT id, tool_name, arg_constraints, expires_at, max_uses, use_count, active, created_at
FROM {schema}.approval_rules
WHERE tool_name = $1 AND active AND (expires_at IS NULL OR expires_at > $2)
  AND (max_uses IS NULL OR use_count < max_uses);

-- name: use_rule
-- One use, if there is still one: whoever comes at the same time waits for the row and looks again.
UPDATE {schema}.approval_rules SET use_count = use_count + 1
WHERE id = $1 AND active AND (expires_at IS NULL OR expires_at > $2) AND (max_uses IS NULL OR use_count < max_uses)
RETURNING 1;

-- name: return_use
-- A use that came to nothing.
UPDATE {schema}.approval_rules SET use_count = use_count - 1 WHERE id = $1 AND use_count > 0 RETURNING tool_name;

-- name: get_rule
-- One rule.
SELECT * FROM {schema}.approval_rules WHERE id = $1;

-- name: list_rules
-- Newest first, before a cursor.
SELECT * FROM {schema}.approval_rules
WHERE ($1::text IS NULL OR tool_name = $1) AND (active OR NOT $2::boolean) AND ($3::uuid IS NULL OR id < $3)
ORDER BY id DESC
LIMIT $4;

-- name: revoke_rule
-- A rule ends; revoking it again changes nothing.
UPDATE {schema}.approval_rules SET active = false, revoked_by = $2, revoked_at = $3
WHERE id = $1 AND active
RETURNING tool_name;

-- name: record_event
-- One line of the record.
INSERT INTO {schema}.approval_events (id, at, event, action_id, rule_id, actor, tool_name, details)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: events_of_action
-- What happened to one action, in order.
SELECT at, event, actor, rule_id, details FROM {schema}.approval_events WHERE action_id = $1 ORDER BY id;

-- name: events_of_rule
-- The latest that happened to one rule.
SELECT at, event, actor, action_id, details FROM {schema}.approval_events WHERE rule_id = $1 ORDER BY id DESC LIMIT $2;
