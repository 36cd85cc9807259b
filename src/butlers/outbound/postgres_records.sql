-- name: take_turn
-- One at a time, until this transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0));

-- name: insert_message
-- Keep a message; nothing happens when its id is known.
INSERT INTO {schema}.messages (id, sender_id, document, created_at, conversation_id, event_type)
VALUES ($1, $2, $3::text::jsonb, $4, $5, $6)
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: is_same_message
-- Whether a known message says the same.
SELECT document = $2::text::jsonb FROM {schema}.messages WHERE id = $1;

-- name: booked_minutes
-- How many messages of a sender stand in each minute from a moment on.
SELECT date_trunc('minute', scheduled_at, 'UTC') AS minute, count(*) AS messages FROM {schema}.scheduled_messages
WHERE sender_id = $1 AND scheduled_at >= $2
GROUP BY 1;

-- name: insert_scheduled
-- One message to some people, to be put into the queue.
INSERT INTO {schema}.scheduled_messages
    (dedupe_key, message_id, recipient_id, sender_id, channel, scheduled_at, priority, created_at, updated_at, detail,
     waits_for)
SELECT key, $1, recipient, $2, channel, moment, $3, $4, $4, detail, CASE WHEN moment > $4 THEN $10 ELSE '' END
FROM unnest($5::text[], $6::text[], $7::text[], $8::timestamptz[], $9::text[])
    AS each (key, recipient, channel, moment, detail);

-- name: insert_blocked
-- Keep why some people do not get a message.
INSERT INTO {schema}.blocked_recipients (message_id, recipient_id, reason, detail, created_at)
SELECT $1, recipient, reason, detail, $2
FROM unnest($3::text[], $4::text[], $5::text[]) AS each (recipient, reason, detail);

-- name: scheduled_of
-- Who of some people a message is scheduled for, and how.
SELECT recipient_id, channel, scheduled_at, detail FROM {schema}.scheduled_messages
WHERE message_id = $1 AND recipient_id = ANY($2::text[]);

-- name: blocked_of
-- Who of some people a message is not scheduled for, and why.
SELECT recipient_id, reason, detail FROM {schema}.blocked_recipients
WHERE message_id = $1 AND recipient_id = ANY($2::text[]);

-- name: mark_queued
-- The queue has entries for them.
UPDATE {schema}.scheduled_messages
SET state = CASE state WHEN 'planned' THEN 'queued' ELSE state END, queued_at = coalesce(queued_at, $2), updated_at = $2
WHERE dedupe_key = ANY($1::text[]) AND state IN ('planned', 'queued', 'sending');

-- name: planned
-- What is not in the queue although its time comes before a moment.
SELECT work.*, message.document FROM {schema}.scheduled_messages AS work
JOIN {schema}.messages AS message ON message.id = work.message_id
WHERE work.state = 'planned' AND work.scheduled_at < $1
ORDER BY work.scheduled_at LIMIT $2;

-- name: overdue
-- What is due and was not touched since a moment: the queue may have lost it.
SELECT work.*, message.document FROM {schema}.scheduled_messages AS work
JOIN {schema}.messages AS message ON message.id = work.message_id
WHERE work.state IN ('queued', 'sending') AND work.updated_at < $1 AND work.scheduled_at < $1
ORDER BY work.updated_at LIMIT $2;

-- name: in_queue
-- What has an entry in the queue, in the order of the keys, behind one of them.
SELECT work.*, message.document FROM {schema}.scheduled_messages AS work
JOIN {schema}.messages AS message ON message.id = work.message_id
WHERE work.state IN ('queued', 'sending') AND work.dedupe_key > $1
ORDER BY work.dedupe_key LIMIT $2;

-- name: work_of
-- Some messages to people, each with its message.
SELECT work.*, message.document FROM {schema}.scheduled_messages AS work
JOIN {schema}.messages AS message ON message.id = work.message_id
WHERE work.dedupe_key = ANY($1::text[]);

-- name: sent_times
-- When attempts for a recipient were started on a channel.
SELECT started_at FROM {schema}.attempts WHERE recipient_id = $1 AND channel = $2 AND started_at > $3 ORDER BY started_at;

-- name: throttled_times
-- For when other messages to a recipient were put off by the throttle.
SELECT scheduled_at FROM {schema}.scheduled_messages
WHERE recipient_id = $1 AND channel = $2 AND state = 'queued' AND waits_for = 'throttle' AND dedupe_key <> $3
ORDER BY scheduled_at;

-- name: insert_attempt
-- An attempt begins.
INSERT INTO {schema}.attempts (dedupe_key, number, recipient_id, channel, started_at) VALUES ($1, $2, $3, $4, $5);

-- name: end_attempt
-- An attempt ended.
UPDATE {schema}.attempts SET ended_at = $3, outcome = $4, error_class = $5, error = $6, delivery_id = $7
WHERE dedupe_key = $1 AND number = $2;

-- name: insert_event
-- A change of a message's state.
INSERT INTO {schema}.message_events (dedupe_key, state, channel, detail, at) VALUES ($1, $2, $3, $4, $5);

-- name: insert_digest
-- A digest for a recipient; nothing happens when it is there.
INSERT INTO {schema}.scheduled_messages
    (dedupe_key, message_id, recipient_id, sender_id, channel, scheduled_at, priority, created_at, updated_at, detail,
     is_digest)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8, 'digest', true)
ON CONFLICT (dedupe_key) DO NOTHING;

-- name: lock_digest
-- The digest as it is, until this transaction ends.
SELECT state FROM {schema}.scheduled_messages WHERE dedupe_key = $1 FOR UPDATE;

-- name: members
-- What a digest carries.
SELECT work.*, message.document FROM {schema}.scheduled_messages AS work
JOIN {schema}.messages AS message ON message.id = work.message_id
WHERE work.digest_id = $1 AND work.state = 'digested'
ORDER BY work.created_at, work.dedupe_key;

-- name: held
-- What waits in the queue for the end of quiet hours or of a mute.
SELECT dedupe_key FROM {schema}.scheduled_messages
WHERE recipient_id = $1 AND state = 'queued' AND waits_for = 'quiet' AND scheduled_at > $2
LIMIT 10000;

-- name: acknowledge
-- The recipient has seen a message, or everything that was delivered and is not acknowledged yet.
UPDATE {schema}.scheduled_messages SET acknowledged_at = $3, updated_at = $3
WHERE recipient_id = $1 AND acknowledged_at IS NULL AND (state = 'delivered' OR repeats > 0)
  AND ($2::uuid IS NULL OR message_id = $2) AND ($4::timestamptz IS NULL OR created_at <= $4)
RETURNING dedupe_key;

-- name: cancel
-- Withdraw a message from some recipients whom it has not left for: it waits, or a digest that waits carries it.
WITH chosen AS (
    SELECT work.dedupe_key FROM {schema}.scheduled_messages AS work
    WHERE work.message_id = $1 AND ($2::text IS NULL OR work.recipient_id = $2)
      AND (work.state IN ('planned', 'queued') OR work.state = 'digested' AND EXISTS (
            SELECT FROM {schema}.scheduled_messages AS digest
            WHERE digest.message_id = work.digest_id AND digest.recipient_id = work.recipient_id
              AND digest.state IN ('planned', 'queued')))
    LIMIT $5 FOR UPDATE OF work
), cancelled AS (
    UPDATE {schema}.scheduled_messages AS work
    SET state = 'cancelled', reason = 'cancelled', detail = $3, updated_at = $4, ended_at = $4
    FROM chosen WHERE work.dedupe_key = chosen.dedupe_key
    RETURNING work.dedupe_key, work.channel
), told AS (
    INSERT INTO {schema}.message_events (dedupe_key, state, channel, detail, at)
    SELECT dedupe_key, 'cancelled', channel, $3, $4 FROM cancelled
)
SELECT dedupe_key FROM cancelled;

-- name: stored_message
-- The document of a message.
SELECT document FROM {schema}.messages WHERE id = $1;
