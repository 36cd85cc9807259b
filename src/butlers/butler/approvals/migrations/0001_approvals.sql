-- Deeds that wait for a person, the rules that let some of them pass, and the record of both.

CREATE TABLE {schema}.approval_rules (
    id              uuid PRIMARY KEY,
    tool_name       text        NOT NULL,
    arg_constraints jsonb       NOT NULL DEFAULT '{}',  -- argument -> {"type": exact | pattern | any, "value": ...}
    description     text        NOT NULL DEFAULT '',
    expires_at      timestamptz,                        -- NULL: never
    max_uses        bigint CHECK (max_uses > 0),        -- NULL: no limit
    use_count       bigint      NOT NULL DEFAULT 0 CHECK (use_count >= 0),
    active          boolean     NOT NULL DEFAULT true,
    created_by      text        NOT NULL,
    created_at      timestamptz NOT NULL,
    revoked_by      text,
    revoked_at      timestamptz,
    CHECK (use_count <= max_uses)
);
CREATE INDEX approval_rules_of_tool ON {schema}.approval_rules (tool_name) WHERE active;

CREATE TABLE {schema}.pending_actions (
    id               uuid PRIMARY KEY,
    request_key      text        NOT NULL UNIQUE,       -- the same key is the same action
    tool_name        text        NOT NULL,
    tool_args        jsonb       NOT NULL,
    summary          text        NOT NULL,              -- what a person reads before deciding
    status           text        NOT NULL DEFAULT 'pending'
                     CHECK (status IN ('pending', 'approved', 'rejected', 'expired', 'executed')),
    needs_person     boolean     NOT NULL DEFAULT false, -- no rule may allow it
    subject_id       uuid,                              -- what it holds back, e.g. a delivery
    requested_by     text        NOT NULL,
    requested_role   text,                              -- of the caller in whose name it is executed
    requested_at     timestamptz NOT NULL,
    expires_at       timestamptz NOT NULL,
    decided_by       text,
    decided_at       timestamptz,
    decision_reason  text,
    rule_id          uuid REFERENCES {schema}.approval_rules (id), -- the rule that was made from it
    result           jsonb,                             -- what came of it: {"result": ...} or {"error": ...}
    executed_at      timestamptz,
    attempts         integer     NOT NULL DEFAULT 0,
    claim_token      uuid,                              -- fencing token of whoever executes it
    claimed_by       text,
    lease_expires_at timestamptz,                       -- nobody else may execute it before
    CHECK (status IN ('pending', 'expired') OR (decided_at IS NOT NULL AND decided_by IS NOT NULL))
);
CREATE INDEX pending_actions_by_status ON {schema}.pending_actions (status, id DESC);
CREATE INDEX pending_actions_to_expire ON {schema}.pending_actions (expires_at) WHERE status = 'pending';
CREATE INDEX pending_actions_of_subject ON {schema}.pending_actions (subject_id) WHERE subject_id IS NOT NULL;

-- Outlives what it tells about, so it refers to nothing.
CREATE TABLE {schema}.approval_events (
    id        uuid PRIMARY KEY,
    at        timestamptz NOT NULL,
    event     text        NOT NULL
              CHECK (event IN ('requested', 'parked', 'approved', 'rejected', 'expired', 'executed', 'execution_failed',
                               'rule_created', 'rule_used', 'rule_use_returned', 'rule_revoked')),
    action_id uuid,
    rule_id   uuid,
    actor     text        NOT NULL,
    tool_name text        NOT NULL,
    details   jsonb       NOT NULL DEFAULT '{}'
);
CREATE INDEX approval_events_of_action ON {schema}.approval_events (action_id, id);
CREATE INDEX approval_events_of_rule ON {schema}.approval_events (rule_id, id);

CREATE FUNCTION {schema}.approval_events_only_grow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'approval_events only grows: % is forbidden', TG_OP USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER approval_events_only_grow
    BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.approval_events
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.approval_events_only_grow();
