-- name: unsignalled
-- Requests that ended a while ago and whose authors have not been shown how.
SELECT request_id, received_at, request_context, lifecycle_state, lifecycle_error, dispatch_outcomes, override
FROM {schema}.message_inbox
WHERE signal_pending AND final_state_at BETWEEN $1 AND $2
ORDER BY final_state_at
LIMIT $3;

-- name: signalled
-- The author has been shown the end, or cannot be.
UPDATE {schema}.message_inbox SET signal_pending = false WHERE request_id = $1;
