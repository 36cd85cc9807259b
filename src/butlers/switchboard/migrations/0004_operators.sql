-- What failed for good and can be run again, what operators did about requests, and what the daemon did at all.

CREATE TABLE {schema}.dead_letter (
    id                  uuid PRIMARY KEY,
    request_id          uuid        NOT NULL,
    segment_id          text        NOT NULL DEFAULT '',   -- as it was first called; '': the request as a whole
    subrequest_id       uuid,
    target_butler       text,
    failure_category    text        NOT NULL CHECK (failure_category IN
                        ('retries_exhausted', 'non_retryable', 'budget_exhausted', 'classification')),
    error_class         text        NOT NULL,
    failure_reason      text        NOT NULL,
    attempts            integer     NOT NULL,
    original_payload    jsonb       NOT NULL,               -- a copy: the month of the inbox may be dropped
    request_context     jsonb       NOT NULL,
    replay_eligible     boolean     NOT NULL,
    ineligible_reason   text,
    replay_count        integer     NOT NULL DEFAULT 0,
    replayed_request_id uuid,
    replay_outcome      text        CHECK (replay_outcome IN ('pending', 'parsed', 'errored', 'cancelled')),
    resolution          text,                               -- what settled it; NULL: open
    resolved_at         timestamptz,
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    UNIQUE (request_id, segment_id)
);

CREATE INDEX dead_letter_recent ON {schema}.dead_letter (created_at DESC, id DESC);

CREATE TABLE {schema}.operator_audit_log (
    id              uuid PRIMARY KEY,
    action          text        NOT NULL CHECK (action IN
                    ('manual_reroute', 'cancel', 'abort', 'retry', 'replay', 'force_complete')),
    request_id      uuid,                                   -- NULL: no such dead letter
    operator        text        NOT NULL,                   -- the authenticated caller
    reason          text        NOT NULL,
    payload         jsonb       NOT NULL,
    outcome         text        NOT NULL CHECK (outcome IN ('success', 'failed', 'rejected', 'partial')),
    outcome_details jsonb       NOT NULL,
    performed_at    timestamptz NOT NULL
);

CREATE INDEX operator_audit_of_request ON {schema}.operator_audit_log (request_id, performed_at);
CREATE INDEX operator_audit_recent ON {schema}.operator_audit_log (performed_at DESC, id DESC);

CREATE TABLE {schema}.dashboard_audit_log (
    id              uuid PRIMARY KEY,
    butler          text        NOT NULL,
    operation       text        NOT NULL,
    request_summary jsonb       NOT NULL,                   -- ids and names, never what somebody wrote
    result          text        NOT NULL,
    error           text,
    actor           text,
    created_at      timestamptz NOT NULL
);

CREATE INDEX dashboard_audit_recent ON {schema}.dashboard_audit_log (created_at DESC, id DESC);
