-- name: enqueue_entries
-- Put entries into the queue; a key that is queued or in flight stays as it is.
-- The rows come in the order of their keys, so that two batches with the same keys do not wait for each other in a
-- circle; `place` says where each stood in its batch.
WITH batch AS MATERIALIZED (SELECT nextval('{schema}.queue_batches') AS first), new AS (
    INSERT INTO {schema}.queue (key, payload, priority, scheduled_at, attempts, seq)
    SELECT key, payload::json, priority, scheduled_at, attempts, batch.first + place
    FROM batch, unnest($1::text[], $2::text[], $3::smallint[], $4::timestamptz[], $5::integer[], $6::integer[])
            AS each (key, payload, priority, scheduled_at, attempts, place)
    ON CONFLICT (key) DO NOTHING
    RETURNING key
), counted AS (
    INSERT INTO {schema}.queue_entered (number) SELECT count(*) FROM new HAVING count(*) > 0
)
SELECT key FROM new;

-- name: dequeue_entries
-- Lease up to $5 entries that are due. What is available is claimable: `available_at` is the time of the schedule while
-- an entry is queued, and the end of the lease while it is in flight.
WITH due AS MATERIALIZED (
    SELECT key, available_at FROM {schema}.lock_due_entries($1, $5)
), taken AS (
    UPDATE {schema}.queue AS work SET {take} FROM due WHERE work.key = due.key
    RETURNING work.key, work.payload, work.priority, work.scheduled_at, work.attempts, work.expirations,
        work.lease_expires_at, due.available_at, work.seq
)
SELECT key, payload, priority, scheduled_at, attempts, expirations, lease_expires_at FROM taken
ORDER BY priority, available_at, seq;

-- name: acknowledge_entries
-- End the entries that are held under these tokens, and count them; the positions of those.
WITH ended AS (
    DELETE FROM {schema}.queue AS work
    USING unnest($1::text[], $2::uuid[]) WITH ORDINALITY AS mine (key, claim_token, place)
    WHERE work.key = mine.key AND work.claim_token = mine.claim_token AND {held}
    RETURNING mine.place
), counted AS (
    UPDATE {schema}.queue_counts AS counts SET acknowledged = acknowledged + (SELECT count(*) FROM ended)
    WHERE counts.shard = $3
)
SELECT place FROM ended;

-- name: dead_letter_entry
-- End an entry that cannot be done, and count it; nothing when another worker holds it.
WITH ended AS (
    DELETE FROM {schema}.queue AS work WHERE work.key = $1 AND work.claim_token = $2 AND {held}
    RETURNING work.key, work.payload, work.priority, work.scheduled_at, work.attempts
), letter AS (
    INSERT INTO {schema}.queue_dead_letters (key, payload, priority, scheduled_at, attempts, reason, ended_at)
    SELECT key, payload, priority, scheduled_at, attempts, $3, $4 FROM ended
)
UPDATE {schema}.queue_counts AS counts SET dead_lettered = dead_lettered + 1
FROM ended WHERE counts.shard = $5
RETURNING ended.key;

-- name: drop_old_dead_letters
-- Forget the oldest dead letters beyond a number.
DELETE FROM {schema}.queue_dead_letters WHERE id IN (
    SELECT id FROM {schema}.queue_dead_letters ORDER BY id DESC OFFSET $1 LIMIT 100 FOR UPDATE SKIP LOCKED
);

-- name: dead_letters_of_queue
-- The newest dead letters.
SELECT key, payload, priority, scheduled_at, attempts, reason FROM {schema}.queue_dead_letters
ORDER BY id DESC LIMIT $1;

-- name: reschedule_entries
-- Move queued entries to an earlier time; in the order of their keys, so that two calls do not wait in a circle.
WITH found AS (
    SELECT key FROM {schema}.queue
    WHERE key = ANY($1::text[]) AND state = 'queued' AND scheduled_at > $2 ORDER BY key FOR UPDATE
)
UPDATE {schema}.queue AS work SET scheduled_at = $2 FROM found WHERE work.key = found.key
RETURNING work.key;

-- name: remove_entries
-- Drop queued entries, in the order of their keys, and count them as not entered.
WITH found AS (
    SELECT key FROM {schema}.queue WHERE key = ANY($1::text[]) AND state = 'queued' ORDER BY key FOR UPDATE
), removed AS (
    DELETE FROM {schema}.queue AS work USING found WHERE work.key = found.key RETURNING work.key
), counted AS (
    INSERT INTO {schema}.queue_entered (number) SELECT -count(*) FROM removed HAVING count(*) > 0
)
SELECT key FROM removed;

-- name: peek_entries
-- What is queued, in the order of handing out, due or not. Not `= 'queued'`: of that, a planner without statistics
-- expects so few rows that it sorts them, and reads all.
SELECT found.* FROM (VALUES (0::smallint), (1::smallint), (2::smallint), (3::smallint)) AS level (priority)
CROSS JOIN LATERAL (
    SELECT work.key, work.payload, work.priority, work.scheduled_at, work.attempts FROM {schema}.queue AS work
    WHERE work.state <> 'in_flight' AND work.priority = level.priority
    ORDER BY work.available_at, work.seq LIMIT $1
) AS found
LIMIT $1;

-- name: add_up_entered
-- Add up to $1 rows of `queue_entered` to their sum, and drop them; those that another worker adds are left to it.
WITH added AS (
    DELETE FROM {schema}.queue_entered
    WHERE ctid = ANY(ARRAY(SELECT ctid FROM {schema}.queue_entered LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING number
)
UPDATE {schema}.queue_counts AS counts SET entered = entered + (SELECT sum(number) FROM added)
WHERE counts.shard = $2 AND EXISTS (SELECT FROM added);

-- name: queue_statistics
-- How much is queued, in flight and ended, the oldest schedule, since when or from when on an entry is available, and how
-- many rows wait to be added up. Counts are written with what they count, and one statement sees all of them: they are
-- exact.
WITH level AS (SELECT * FROM (VALUES (0::smallint), (1::smallint), (2::smallint), (3::smallint)) AS one (priority)),
counts AS (
    SELECT sum(entered) AS entered, sum(acknowledged) AS acknowledged, sum(dead_lettered) AS dead_lettered
    FROM {schema}.queue_counts
), recent AS (
    SELECT count(*) AS pieces, coalesce(sum(number), 0) AS entered FROM {schema}.queue_entered
), held AS (
    SELECT count(*) AS in_flight FROM {schema}.queue WHERE state = 'in_flight'
)
SELECT (counts.entered + recent.entered - counts.acknowledged - counts.dead_lettered - held.in_flight)::bigint AS queued,
    held.in_flight, counts.acknowledged::bigint AS acknowledged, counts.dead_lettered::bigint AS dead_lettered,
    recent.pieces,
    (SELECT min(first.available_at) FROM level CROSS JOIN LATERAL (
        SELECT work.available_at FROM {schema}.queue AS work
        WHERE work.priority = level.priority AND work.state <> 'in_flight' ORDER BY work.available_at, work.seq LIMIT 1
    ) AS first) AS oldest_scheduled_at,
    (SELECT min(first.available_at) FROM level CROSS JOIN LATERAL (
        SELECT work.available_at FROM {schema}.queue AS work
        WHERE work.priority = level.priority ORDER BY work.available_at, work.seq LIMIT 1
    ) AS first) AS available_at
FROM counts, recent, held;
