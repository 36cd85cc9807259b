-- What a butler remembers: what happened (episodes), what is so (facts), how to act (rules).

CREATE TABLE {schema}.memory_episodes (
    id                   uuid PRIMARY KEY,
    session_id           uuid UNIQUE,                    -- a session leaves one episode, however often it is told
    request_id           uuid,
    source               text        NOT NULL,           -- route, trigger:<caller>, schedule:<name>, tool:<caller>
    speaker              text        NOT NULL,           -- who is meant by "I" and "my"
    content              text        NOT NULL,           -- what was said
    answer               text,                           -- what was answered
    importance           double precision NOT NULL CHECK (importance BETWEEN 0 AND 1),
    consolidation_status text        NOT NULL DEFAULT 'pending'
                         CHECK (consolidation_status IN ('pending', 'processing', 'consolidated', 'dead')),
    attempts             integer     NOT NULL DEFAULT 0,
    claim_token          uuid,                           -- fencing: only its holder may write the outcome
    claimed_at           timestamptz,
    lease_expires_at     timestamptz,
    last_error           text,
    created_at           timestamptz NOT NULL,
    expires_at           timestamptz NOT NULL,
    consolidated_at      timestamptz,
    search               tsvector GENERATED ALWAYS AS
                         (to_tsvector('english', content || ' ' || coalesce(answer, ''))) STORED
);
CREATE INDEX memory_episodes_open ON {schema}.memory_episodes (attempts, created_at)
    WHERE consolidation_status IN ('pending', 'processing');
CREATE INDEX memory_episodes_expiry ON {schema}.memory_episodes (expires_at);
CREATE INDEX memory_episodes_search ON {schema}.memory_episodes USING gin (search);

CREATE TABLE {schema}.memory_facts (
    id                uuid PRIMARY KEY,
    subject           text        NOT NULL,
    predicate         text        NOT NULL,
    content           text        NOT NULL,
    subject_key       text        NOT NULL,              -- the same words however they are written
    predicate_key     text        NOT NULL,
    content_key       text        NOT NULL,
    permanence        text        NOT NULL
                      CHECK (permanence IN ('permanent', 'stable', 'standard', 'volatile', 'ephemeral')),
    decay_rate        double precision NOT NULL CHECK (decay_rate >= 0),        -- per day
    confidence        double precision NOT NULL CHECK (confidence BETWEEN 0 AND 1), -- as it was at confirmed_at
    origin            text        NOT NULL CHECK (origin IN ('tool', 'local', 'model')),
    source_episode_id uuid,                              -- the episode may be gone by now
    observed_at       timestamptz NOT NULL,              -- when it was said
    confirmed_at      timestamptz NOT NULL,              -- decay counts from here
    confirmations     integer     NOT NULL DEFAULT 0,
    created_at        timestamptz NOT NULL,
    superseded_by     uuid,
    superseded_at     timestamptz,                       -- NULL: this is what is held true
    search            tsvector GENERATED ALWAYS AS
                      (to_tsvector('english', subject || ' ' || predicate || ' ' || content)) STORED
);
CREATE UNIQUE INDEX memory_facts_active ON {schema}.memory_facts (subject_key, predicate_key)
    WHERE superseded_at IS NULL;
CREATE INDEX memory_facts_history ON {schema}.memory_facts (subject_key, predicate_key, id DESC);
CREATE INDEX memory_facts_search ON {schema}.memory_facts USING gin (search) WHERE superseded_at IS NULL;

CREATE TABLE {schema}.memory_rules (
    id            uuid PRIMARY KEY,
    content       text        NOT NULL,
    rule_key      text        NOT NULL UNIQUE,           -- the same words however they are written
    maturity      text        NOT NULL CHECK (maturity IN ('candidate', 'established', 'proven', 'anti_pattern')),
    helpful_count integer     NOT NULL DEFAULT 0,
    harmful_count integer     NOT NULL DEFAULT 0,
    origin        text        NOT NULL CHECK (origin IN ('tool', 'local', 'model')),
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    search        tsvector GENERATED ALWAYS AS (to_tsvector('english', content)) STORED
);
CREATE INDEX memory_rules_search ON {schema}.memory_rules USING gin (search);

-- Which episode corrected the butler in which words; the second one makes a rule of it.
CREATE TABLE {schema}.memory_corrections (
    rule_key   text        NOT NULL,
    episode_id uuid        NOT NULL,
    seen_at    timestamptz NOT NULL,
    PRIMARY KEY (rule_key, episode_id)
);
CREATE INDEX memory_corrections_age ON {schema}.memory_corrections (seen_at);
