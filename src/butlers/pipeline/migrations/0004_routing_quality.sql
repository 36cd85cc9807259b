-- How well messages are routed, what is wrong with it, and what another version of the router would change. No text of any
-- message stands here. In the columns of a slice '*' is every value and '' none.

CREATE TABLE {schema}.routing_quality (
    window_start          timestamptz NOT NULL,
    window_end            timestamptz NOT NULL,
    router                text        NOT NULL,
    model_version         text        NOT NULL,
    prompt_version        text        NOT NULL,
    source_channel        text        NOT NULL,
    target_butler         text        NOT NULL,
    baseline_start        timestamptz NOT NULL,
    baseline_end          timestamptz NOT NULL,
    requests              bigint      NOT NULL,      -- decided, or failed before a decision
    decisions             bigint      NOT NULL,
    corrected             bigint      NOT NULL,      -- a person sent them to somebody else
    fallbacks             bigint      NOT NULL,      -- to general because nobody was sure
    general_chosen        bigint      NOT NULL,      -- to general on purpose
    multi_segment         bigint      NOT NULL,
    repeats               bigint      NOT NULL,      -- the same text once more
    repeats_same          bigint      NOT NULL,      -- and taken apart in the same way
    redecided             bigint      NOT NULL,      -- a part was dispatched more than once
    redecided_same        bigint      NOT NULL,      -- and always to the same butler
    dispatches            bigint      NOT NULL,
    failed_dispatches     bigint      NOT NULL,
    partial_failures      bigint      NOT NULL,      -- requests
    total_failures        bigint      NOT NULL,      -- requests
    correctness           double precision,          -- NULL in a rate: there is nothing to divide by
    fallback_rate         double precision,
    multi_segment_rate    double precision,
    stability             double precision,
    dispatch_failure_rate double precision,
    partial_failure_rate  double precision,
    total_failure_rate    double precision,
    baseline_decisions    bigint      NOT NULL,
    multi_segment_change  double precision,          -- of the rate, against the baseline
    shift                 double precision,          -- Jensen-Shannon divergence of the targets, in bits
    PRIMARY KEY (window_start, window_end, router, model_version, prompt_version, source_channel, target_butler)
);

CREATE TABLE {schema}.routing_alerts (
    window_start   timestamptz      NOT NULL,
    window_end     timestamptz      NOT NULL,
    metric         text             NOT NULL,
    router         text             NOT NULL,
    model_version  text             NOT NULL,
    prompt_version text             NOT NULL,
    source_channel text             NOT NULL,
    target_butler  text             NOT NULL,
    value          double precision NOT NULL,
    threshold      double precision NOT NULL,
    samples        bigint           NOT NULL,
    state          text             NOT NULL CHECK (state IN ('firing', 'cleared')),  -- cleared: a later run found it well
    PRIMARY KEY (window_start, window_end, metric, router, model_version, prompt_version, source_channel, target_butler)
);

CREATE TABLE {schema}.routing_evaluations (
    window_start            timestamptz NOT NULL,
    window_end              timestamptz NOT NULL,
    candidate               text        NOT NULL,    -- the version that is tried: model and fingerprint of its settings
    router                  text        NOT NULL,    -- these three: of the stored decisions
    model_version           text        NOT NULL,
    prompt_version          text        NOT NULL,
    messages                bigint      NOT NULL,
    agreed                  bigint      NOT NULL,
    stored_fallbacks        bigint      NOT NULL,
    candidate_fallbacks     bigint      NOT NULL,
    corrected               bigint      NOT NULL,    -- a person said where they belong
    stored_right            bigint      NOT NULL,    -- of those
    candidate_right         bigint      NOT NULL,    -- of those
    agreement               double precision,
    stored_fallback_rate    double precision,
    candidate_fallback_rate double precision,
    stored_accuracy         double precision,
    candidate_accuracy      double precision,
    PRIMARY KEY (window_start, window_end, candidate, router, model_version, prompt_version)
);

CREATE TABLE {schema}.routing_evaluation_changes (
    window_start      timestamptz NOT NULL,
    window_end        timestamptz NOT NULL,
    candidate         text        NOT NULL,
    stored_targets    text        NOT NULL,          -- names in order, joined by +
    candidate_targets text        NOT NULL,
    messages          bigint      NOT NULL,
    samples           jsonb       NOT NULL,          -- request ids, the smallest first
    sampled           integer     NOT NULL,
    PRIMARY KEY (window_start, window_end, candidate, stored_targets, candidate_targets)
);
