-- What the service levels are read from: when the work on a request began, and how long the door took.

ALTER TABLE {schema}.message_inbox ADD COLUMN progress_at timestamptz;  -- first claimed: its author sees PROGRESS

-- Counts and not single values: one row for every time that occurred in a minute.
CREATE TABLE {schema}.ingress_accept_times (
    minute         timestamptz NOT NULL,            -- in which the messages came
    source_channel text        NOT NULL,
    accept_ms      integer     NOT NULL,            -- from their arrival to the durable accept, rounded up
    messages       bigint      NOT NULL,
    PRIMARY KEY (minute, source_channel, accept_ms)
);

-- Recent first: the primary key (received_at, request_id), read backwards, is that order; a second index of the same
-- would cost every message and tempt the planner to sort.
DROP INDEX {schema}.message_inbox_recent;
