-- What was removed because it is no longer kept: one row for each table that a run looked at, and for each month it dropped.

CREATE TABLE {schema}.pruning_log (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id         uuid        NOT NULL,
    job            text        NOT NULL,
    table_name     text        NOT NULL,
    partition_name text,                                -- NULL: rows of the table, not a month of it
    rows           bigint      NOT NULL,
    oldest         timestamptz,                         -- NULL: there was nothing to remove
    newest         timestamptz,
    before         timestamptz NOT NULL,                -- all that is older is gone
    pruned_at      timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX pruning_log_by_table ON {schema}.pruning_log (table_name, before DESC);
