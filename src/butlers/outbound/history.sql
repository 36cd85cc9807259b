-- name: message
-- One message.
SELECT id, sender_id, document, created_at, conversation_id, event_type FROM {schema}.messages WHERE id = $1;

-- name: recipients_of_message
-- What became of a message, recipient by recipient; who was blocked when it was accepted has no key.
SELECT * FROM (
    SELECT dedupe_key, recipient_id, channel, state, reason, detail, scheduled_at, attempts, sends, failed_channels,
           delivery_id, digest_id, repeats, acknowledged_at, created_at, queued_at, ended_at, waits_for
    FROM {schema}.scheduled_messages WHERE message_id = $1 AND recipient_id > $2
    UNION ALL
    SELECT NULL, recipient_id, NULL, 'blocked', reason, detail, NULL, 0, 0, '{}',
           NULL, NULL, 0, NULL, created_at, NULL, created_at, ''
    FROM {schema}.blocked_recipients WHERE message_id = $1 AND recipient_id > $2
) AS everybody
ORDER BY recipient_id LIMIT $3;

-- name: events_of
-- The history of some messages to people.
SELECT dedupe_key, state, channel, detail, at FROM {schema}.message_events
WHERE dedupe_key = ANY($1::text[]) ORDER BY id;

-- name: attempts_of
-- The attempts of some messages to people.
SELECT dedupe_key, number, channel, started_at, ended_at, outcome, error_class, error, delivery_id FROM {schema}.attempts
WHERE dedupe_key = ANY($1::text[]) ORDER BY dedupe_key, number;

-- name: list_messages
-- Messages, newest first, with how many recipients each has in which state.
SELECT message.id, message.sender_id, message.event_type, message.conversation_id, message.created_at,
       message.document->>'priority' AS priority,
       (SELECT coalesce(jsonb_object_agg(state, number), '{}'::jsonb) FROM (
            SELECT state, count(*) AS number FROM {schema}.scheduled_messages WHERE message_id = message.id GROUP BY state
        ) AS states) AS states,
       (SELECT count(*) FROM {schema}.blocked_recipients WHERE message_id = message.id) AS blocked
FROM {schema}.messages AS message
WHERE ($1::timestamptz IS NULL OR (message.created_at, message.id) < ($1, $2::uuid))
  AND ($3::text IS NULL OR message.conversation_id = $3)
  AND ($4::text IS NULL OR message.sender_id = $4)
  AND ($5::text IS NULL OR message.id = ANY(ARRAY(
        (SELECT message_id FROM {schema}.scheduled_messages WHERE recipient_id = $5
         ORDER BY scheduled_at DESC LIMIT 10000)
        UNION ALL
        (SELECT message_id FROM {schema}.blocked_recipients WHERE recipient_id = $5
         ORDER BY created_at DESC LIMIT 10000))))
  AND ($6::text IS NULL OR EXISTS (
        SELECT FROM {schema}.scheduled_messages WHERE message_id = message.id AND state = $6)
       OR $6 = 'blocked' AND EXISTS (SELECT FROM {schema}.blocked_recipients WHERE message_id = message.id))
ORDER BY message.created_at DESC, message.id DESC
LIMIT $7;

-- name: dead_keys
-- What of a message is a dead letter, of one recipient or all.
SELECT dedupe_key FROM {schema}.scheduled_messages
WHERE message_id = $1 AND ($2::text IS NULL OR recipient_id = $2) AND state = 'dead_lettered'
LIMIT $3;

-- name: service_levels
-- How messages of a time range ended, and how late those that were delivered were.
SELECT count(*) FILTER (WHERE state = 'delivered') AS delivered,
       count(*) FILTER (WHERE state = 'dead_lettered') AS dead_lettered,
       count(*) FILTER (WHERE state = 'expired') AS expired,
       count(*) FILTER (WHERE state = 'blocked') AS blocked,
       (SELECT count(*) FROM {schema}.blocked_recipients WHERE created_at >= $1 AND created_at < $2) AS blocked_at_once,
       count(*) FILTER (WHERE state = 'digested') AS digested,
       count(*) FILTER (WHERE state = 'cancelled') AS cancelled,
       count(*) FILTER (WHERE state IN ('planned', 'queued', 'sending')) AS open,
       count(*) FILTER (WHERE state = 'delivered' AND ended_at <= scheduled_at + interval '1 minute') AS on_time,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM ended_at - scheduled_at))
           FILTER (WHERE state = 'delivered') AS p50_late_s,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM ended_at - scheduled_at))
           FILTER (WHERE state = 'delivered') AS p95_late_s
FROM {schema}.scheduled_messages
WHERE created_at >= $1 AND created_at < $2;
