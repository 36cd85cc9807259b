-- name: chat_before
-- A chat before one message: the last $3 messages, or all since $4 when those are more; newest first.
SELECT request_id, received_at, normalized_text, aggregated_reply
FROM (
    SELECT request_id, received_at, normalized_text, aggregated_reply,
           row_number() OVER (ORDER BY received_at DESC, request_id DESC) AS place
    FROM {schema}.message_inbox
    WHERE thread_key = (SELECT thread_key FROM {schema}.message_inbox WHERE received_at = $1 AND request_id = $2)
      AND (received_at, request_id) < ($1, $2)
    ORDER BY received_at DESC, request_id DESC
    LIMIT $5
) AS recent
WHERE place <= $3 OR received_at >= $4
ORDER BY received_at DESC, request_id DESC;

-- name: chain_before
-- What the sender of one mail wrote before it in its chain, newest first, as far back as $3 characters reach; $4 messages
-- of the chain are looked at at most. Any person who knows a Message-ID can join a chain, so others' mails are not shown.
SELECT request_id, received_at, normalized_text, aggregated_reply
FROM (
    SELECT request_id, received_at, normalized_text, aggregated_reply,
           sum(length(normalized_text)) OVER newest_first - length(normalized_text) AS newer_characters
    FROM (
        SELECT request_id, received_at, normalized_text, aggregated_reply,
               request_context ->> 'source_sender_identity' AS sender
        FROM {schema}.message_inbox
        WHERE thread_key = (SELECT thread_key FROM {schema}.message_inbox WHERE received_at = $1 AND request_id = $2)
          AND (received_at, request_id) < ($1, $2)
        ORDER BY received_at DESC, request_id DESC
        LIMIT $4
    ) AS recent
    WHERE lower(sender) = (SELECT lower(request_context ->> 'source_sender_identity') FROM {schema}.message_inbox
                           WHERE received_at = $1 AND request_id = $2)
    WINDOW newest_first AS (ORDER BY received_at DESC, request_id DESC)
) AS chain
WHERE newer_characters < $3
ORDER BY received_at DESC, request_id DESC;

-- name: answers_to
-- What butlers said in answer to some requests and what may have arrived, oldest first. Switchboard's own are no part of
-- the talk: they say how far a request has come.
SELECT request_id, source_butler, message, created_at
FROM {schema}.notifications
WHERE request_id = ANY($1::uuid[]) AND status <> 'failed' AND source_butler <> 'switchboard'
ORDER BY created_at;

-- name: last_choice_in_thread
-- The newest earlier message of a thread that a butler was chosen for; `general` only when a rule or a person did it.
SELECT request_id, received_at, routing_output, override
FROM {schema}.message_inbox
WHERE thread_key = (SELECT thread_key FROM {schema}.message_inbox WHERE received_at = $1 AND request_id = $2)
  AND (received_at, request_id) < ($1, $2)
  AND (routing_output ->> 'router' = 'policy' OR override ->> 'action' = 'manual_reroute'
       OR NOT routing_output -> 'segments' @> '[{"butler": "general"}]')
ORDER BY received_at DESC, request_id DESC
LIMIT 1;

-- name: last_in_thread
-- The message of a thread just before another, and who got it.
SELECT request_id, received_at, routing_output, override
FROM {schema}.message_inbox
WHERE thread_key = (SELECT thread_key FROM {schema}.message_inbox WHERE received_at = $1 AND request_id = $2)
  AND (received_at, request_id) < ($1, $2)
ORDER BY received_at DESC, request_id DESC
LIMIT 1;

-- name: record_model_call
-- What one question to a model came to.
INSERT INTO {schema}.routing_model_calls
    (id, request_id, rollout_key, prompt_version, model_version, outcome, error_class, input_tokens, output_tokens,
     duration_ms, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: rollout_state
-- How a version on trial stands.
SELECT state, judged_from, changed_by, reason, changed_at FROM {schema}.routing_rollout WHERE rollout_key = $1;

-- name: begin_rollout
-- A version that was not on trial before.
INSERT INTO {schema}.routing_rollout (rollout_key, state, judged_from, changed_by, reason, changed_at)
VALUES ($1, 'active', $2, $3, $4, $2)
ON CONFLICT (rollout_key) DO NOTHING
RETURNING rollout_key;

-- name: move_rollout
-- From one state to the other, once, whichever caller comes first.
UPDATE {schema}.routing_rollout
SET state = $3, changed_by = $4, reason = $5, changed_at = $6,
    judged_from = CASE WHEN $3 = 'active' THEN $6 ELSE judged_from END
WHERE rollout_key = $1 AND state = $2
RETURNING rollout_key;

-- name: log_rollout
-- Who changed what on a trial, and why.
INSERT INTO {schema}.routing_rollout_log (id, rollout_key, previous, new, changed_by, reason, figures, changed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: rollout_history
-- The latest changes.
SELECT rollout_key, previous, new, changed_by, reason, figures, changed_at
FROM {schema}.routing_rollout_log ORDER BY changed_at DESC LIMIT $1;

-- name: version_figures
-- How the last $3 calls of a version since a moment went; what a person sent elsewhere afterwards counts as wrong.
SELECT count(*) AS requests,
       count(*) FILTER (WHERE outcome = 'failed') AS failed,
       count(*) FILTER (WHERE outcome = 'unsure') AS unsure,
       count(*) FILTER (WHERE outcome = 'answered' AND corrected) AS corrected
FROM (
    SELECT call.outcome,
           EXISTS (SELECT FROM {schema}.message_inbox AS message
                   WHERE message.request_id = call.request_id
                     AND message.override ->> 'action' = 'manual_reroute') AS corrected
    FROM {schema}.routing_model_calls AS call
    WHERE call.rollout_key = $1 AND call.created_at >= $2
    ORDER BY call.created_at DESC
    LIMIT $3
) AS judged;
