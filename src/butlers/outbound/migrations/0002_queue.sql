-- The queue between the decision to send and the sending: what waits for a worker, and what a worker holds.

-- Entries that are enqueued together take one number from here; each adds its place among them.
CREATE SEQUENCE {schema}.queue_batches INCREMENT BY 100000;

CREATE TABLE {schema}.queue (
    key              text PRIMARY KEY,
    payload          json        NOT NULL,     -- as it came; json, because jsonb takes no NUL character in a text
    priority         smallint    NOT NULL CHECK (priority BETWEEN 0 AND 3),  -- 0 urgent, 1 high, 2 normal, 3 low
    scheduled_at     timestamptz NOT NULL,
    seq              bigint      NOT NULL,     -- the order of enqueueing
    state            text        NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'in_flight')),
    attempts         integer     NOT NULL DEFAULT 0,
    expirations      integer     NOT NULL DEFAULT 0,  -- leases that ran out
    claim_token      uuid,
    claimed_by       text,
    lease_expires_at timestamptz,
    -- Since when a worker may take the entry. One index on it finds both what is due and what a dead worker held.
    available_at     timestamptz NOT NULL GENERATED ALWAYS AS (coalesce(lease_expires_at, scheduled_at)) STORED
) WITH (
    fillfactor = 80,
    -- Every entry is updated and deleted within a short time, at the front of the index that `dequeue` reads.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.05
);

CREATE INDEX queue_available ON {schema}.queue (priority, available_at, seq) INCLUDE (state);
-- What workers hold is little, and counted here; what is queued may be much, and is counted by `queue_counts`.
CREATE INDEX queue_in_flight ON {schema}.queue (state) WHERE state = 'in_flight';

-- Locks the next entries for a worker, level by level, and stops at the limit: no entry is read that is not taken. A
-- function, because it has settings of its own: a queue that was just filled has no statistics yet, and the planner would
-- read and sort all of it. It says that it gives few rows, so that the planner finds each by its key.
CREATE FUNCTION {schema}.lock_due_entries(moment timestamptz, most bigint)
RETURNS TABLE (key text, available_at timestamptz) LANGUAGE plpgsql ROWS 10
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    found_before bigint := 0;
    found_now    bigint;
BEGIN
    FOR level IN 0..3 LOOP
        EXIT WHEN found_before >= most;
        RETURN QUERY
            SELECT work.key, work.available_at FROM {schema}.queue AS work
            WHERE work.priority = level::smallint AND work.available_at <= moment
            ORDER BY work.available_at, work.seq LIMIT most - found_before
            FOR UPDATE SKIP LOCKED;
        GET DIAGNOSTICS found_now = ROW_COUNT;
        found_before := found_before + found_now;
    END LOOP;
END
$$;

-- The newest entries that could not be done, for people to look at.
CREATE TABLE {schema}.queue_dead_letters (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key          text        NOT NULL,
    payload      json        NOT NULL,
    priority     smallint    NOT NULL,
    scheduled_at timestamptz NOT NULL,
    attempts     integer     NOT NULL,
    reason       text        NOT NULL,
    ended_at     timestamptz NOT NULL
);

-- How many entries came in and how many have ended; those between are in the queue. Several rows, so that workers that
-- end entries at once do not wait for each other.
CREATE TABLE {schema}.queue_counts (
    shard         smallint PRIMARY KEY,
    entered       bigint NOT NULL DEFAULT 0,   -- less those that were removed
    acknowledged  bigint NOT NULL DEFAULT 0,
    dead_lettered bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

INSERT INTO {schema}.queue_counts (shard) SELECT generate_series(0, 15);

-- What is not yet added to `entered`. Rows of their own, because entries come in with the transactions of callers: a
-- transaction that lasts must not hold up others over a count.
CREATE TABLE {schema}.queue_entered (number integer NOT NULL);
