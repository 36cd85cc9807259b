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
