-- Delivery statistics and service levels of windows, and how fast error budgets were spent. Rates and percentiles are not
-- rounded; NULL in one of them: there was nothing to divide by or to measure.

CREATE TABLE {schema}.delivery_stats (
    window_start          timestamptz NOT NULL,
    window_end            timestamptz NOT NULL,
    grouping              text        NOT NULL,     -- channel,intent; '' for the row in all
    group_values          text        NOT NULL,     -- as JSON: a value per property of the grouping
    total                 bigint      NOT NULL,
    delivered             bigint      NOT NULL,
    failed                bigint      NOT NULL,
    dead_lettered         bigint      NOT NULL,
    uncertain             bigint      NOT NULL,
    expired               bigint      NOT NULL,
    open                  bigint      NOT NULL,
    attempted             bigint      NOT NULL,     -- tried at all
    retried               bigint      NOT NULL,     -- tried more than once
    success_rate          double precision,         -- delivered / ended
    dead_letter_rate      double precision,         -- dead-lettered / ended
    retry_rate            double precision,         -- retried / attempted
    p50_ms                double precision,         -- of the delivered, from asking to the end
    p95_ms                double precision,
    p99_ms                double precision,
    provider_p50_ms       double precision,         -- of the attempts
    provider_p95_ms       double precision,
    provider_p99_ms       double precision,
    requests_admitted     bigint,                   -- at the door, in the row in all only
    requests_deduplicated bigint,
    requests_parked       bigint,
    requests_rejected     bigint,
    PRIMARY KEY (window_start, window_end, grouping, group_values)
);

CREATE TABLE {schema}.service_levels (
    window_start timestamptz NOT NULL,
    window_end   timestamptz NOT NULL,
    sli          text        NOT NULL,
    dimensions   text        NOT NULL,              -- as JSON; {} for a row in all
    events       bigint      NOT NULL,
    part         bigint,                            -- those that the rate speaks of
    rate         double precision,                  -- part / events
    p50_ms       double precision,
    p95_ms       double precision,
    p99_ms       double precision,
    counts       text        NOT NULL,              -- what else was counted, as JSON
    PRIMARY KEY (window_start, window_end, sli, dimensions)
);

CREATE TABLE {schema}.error_budget_burn (
    as_of          timestamptz NOT NULL,            -- where all windows end
    window_s       bigint      NOT NULL,
    channel        text        NOT NULL,
    identity_scope text        NOT NULL,
    good           bigint      NOT NULL,
    bad            bigint      NOT NULL,
    objective      double precision NOT NULL,
    burn_rate      double precision,                -- NULL: too few events to say
    PRIMARY KEY (as_of, window_s, channel, identity_scope)
);
