-- The whole delivery plane: parking and release, dead letters, shared budgets, breakers, throttles, recipient rules.

ALTER TABLE {schema}.delivery_requests
    ALTER COLUMN target_identity DROP NOT NULL,                -- unknown while an identifier is missing
    ADD COLUMN contact_id    uuid,                             -- whom it is for, when a contact was named
    ADD COLUMN rank          smallint NOT NULL DEFAULT 0,      -- answers first, then by priority
    ADD COLUMN admitted      boolean NOT NULL DEFAULT true,    -- false: released, and still to pass admission
    ADD COLUMN replay_of     uuid REFERENCES {schema}.delivery_requests (id),
    ADD COLUMN action_id     uuid,                             -- the pending action that holds or held it
    ADD COLUMN decisions     jsonb NOT NULL DEFAULT '[]',      -- a list of (at, rule, verdict, detail): what `why` reads
    ADD COLUMN tell_owner    boolean NOT NULL DEFAULT false,   -- somebody has to act and was not told yet
    ADD COLUMN settled_by    text,                             -- who said what became of an uncertain delivery
    ADD COLUMN settled_at    timestamptz;

CREATE INDEX delivery_requests_of_origin ON {schema}.delivery_requests (origin_butler, rank, next_attempt_at, id)
    WHERE status IN ('pending', 'awaiting_retry');
CREATE INDEX delivery_requests_ended ON {schema}.delivery_requests (terminal_at) WHERE terminal_at IS NOT NULL;
CREATE INDEX delivery_requests_keyed ON {schema}.delivery_requests (terminal_at) WHERE duplicate_detection AND terminal_at IS NOT NULL;
CREATE INDEX delivery_requests_replays ON {schema}.delivery_requests (replay_of) WHERE replay_of IS NOT NULL;
CREATE INDEX delivery_requests_expiring ON {schema}.delivery_requests (not_after)
    WHERE not_after IS NOT NULL AND terminal_at IS NULL;
CREATE INDEX delivery_requests_notices ON {schema}.delivery_requests (created_at)
    WHERE origin_butler = 'messenger';
CREATE INDEX delivery_requests_standing ON {schema}.delivery_requests (status, created_at DESC, id DESC);
CREATE INDEX delivery_requests_to_tell ON {schema}.delivery_requests (id) WHERE tell_owner;
CREATE INDEX delivery_requests_parked ON {schema}.delivery_requests (id)
    WHERE status IN ('pending_missing_identifier', 'pending_approval', 'uncertain');
CREATE INDEX delivery_attempts_open ON {schema}.delivery_attempts (worker) WHERE completed_at IS NULL;
CREATE INDEX delivery_attempts_started ON {schema}.delivery_attempts (started_at);
CREATE INDEX delivery_receipts_provider ON {schema}.delivery_receipts (provider_delivery_id);

CREATE TABLE {schema}.delivery_dead_letter (
    id                   uuid PRIMARY KEY,
    delivery_id          uuid        NOT NULL UNIQUE REFERENCES {schema}.delivery_requests (id),
    request_id           uuid,
    origin_butler        text        NOT NULL,
    channel              text        NOT NULL,
    intent               text        NOT NULL,
    target_identity      text,
    quarantine_reason    text        NOT NULL CHECK (quarantine_reason IN ('retries_exhausted', 'manually_quarantined')),
    error_class          text        NOT NULL,
    error_summary        text        NOT NULL,
    total_attempts       integer     NOT NULL,
    first_attempt_at     timestamptz,
    last_attempt_at      timestamptz,
    original_envelope    jsonb       NOT NULL,
    all_attempt_outcomes jsonb       NOT NULL,
    replay_eligible      boolean     NOT NULL DEFAULT true,
    replay_count         integer     NOT NULL DEFAULT 0,
    last_replay_id       uuid REFERENCES {schema}.delivery_requests (id),
    discarded_at         timestamptz,
    discard_reason       text,
    discarded_by         text,
    created_at           timestamptz NOT NULL
);
CREATE INDEX delivery_dead_letter_recent ON {schema}.delivery_dead_letter (created_at DESC, id DESC);

-- Budgets that all Messenger processes draw from; whoever decides an admission holds the row `lock`.
CREATE TABLE {schema}.rate_buckets (
    name              text PRIMARY KEY,         -- global | channel:telegram.bot | recipient:telegram.bot:7
    layer             text,                     -- set where the row is one butler's use of a shared budget
    origin_butler     text,
    capacity          double precision NOT NULL,
    refill_per_second double precision NOT NULL,
    tokens            double precision NOT NULL,
    updated_at        timestamptz NOT NULL,
    full_at           timestamptz NOT NULL      -- idle since then: may be forgotten
) WITH (fillfactor = 70);
CREATE INDEX rate_buckets_idle ON {schema}.rate_buckets (full_at);
CREATE INDEX rate_buckets_shares ON {schema}.rate_buckets (layer) WHERE layer IS NOT NULL;
INSERT INTO {schema}.rate_buckets (name, capacity, refill_per_second, tokens, updated_at, full_at)
VALUES ('lock', 1, 1, 1, '-infinity', 'infinity');

-- One provider in one identity scope: its circuit and how strictly it is used at present.
CREATE TABLE {schema}.channel_states (
    name                 text PRIMARY KEY,      -- telegram.bot
    state                text        NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'half-open')),
    generation           integer     NOT NULL DEFAULT 0,
    consecutive_failures integer     NOT NULL DEFAULT 0,
    probes_out           integer     NOT NULL DEFAULT 0,
    probe_successes      integer     NOT NULL DEFAULT 0,
    trip_reason          text,
    tripped_at           timestamptz,
    probe_at             timestamptz,
    stance               text        NOT NULL DEFAULT 'normal' CHECK (stance IN ('normal', 'tight')),
    burn_rate            double precision,      -- error budget spent over error budget allowed; NULL: nothing to judge
    stance_since         timestamptz,
    updated_at           timestamptz NOT NULL
);

-- Windows in which a provider does not want to hear from us: about one conversation, or at all.
CREATE TABLE {schema}.throttles (
    scope      text PRIMARY KEY,                -- telegram.bot:7 or telegram.bot
    channel    text        NOT NULL,            -- telegram.bot
    until      timestamptz NOT NULL,
    reason     text        NOT NULL,
    created_at timestamptz NOT NULL
);

-- Recipients that are not to be written to, or who moved.
CREATE TABLE {schema}.recipient_rules (
    channel    text        NOT NULL,
    target     text        NOT NULL,
    rule       text        NOT NULL CHECK (rule IN ('suppressed', 'moved')),
    moved_to   text,
    reason     text        NOT NULL,
    decided_by text        NOT NULL,            -- a person, or the provider
    since      timestamptz NOT NULL,
    PRIMARY KEY (channel, target)
);

-- How requests fared at the door, refusals included, which leave no other row.
CREATE TABLE {schema}.admission_outcomes (
    minute        timestamptz NOT NULL,
    channel       text        NOT NULL,
    intent        text        NOT NULL,
    origin_butler text        NOT NULL,
    outcome       text        NOT NULL CHECK (outcome IN ('admitted', 'deduplicated', 'parked', 'rejected')),
    rule          text        NOT NULL DEFAULT '',  -- which rule rejected
    requests      bigint      NOT NULL,
    PRIMARY KEY (minute, channel, intent, origin_butler, outcome, rule)
);
