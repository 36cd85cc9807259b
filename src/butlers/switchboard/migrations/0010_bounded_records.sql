-- What may grow stays bounded: listings by state are led by an index, old records are found by their age, and a thing
-- learned that its butler refuses for good has an end.

CREATE INDEX message_inbox_by_state ON {schema}.message_inbox (lifecycle_state, received_at DESC, request_id DESC);

CREATE INDEX routing_model_calls_age ON {schema}.routing_model_calls (created_at);
CREATE INDEX extraction_runs_age ON {schema}.extraction_runs (created_at);
CREATE INDEX butler_eligibility_log_age ON {schema}.butler_eligibility_log (observed_at);

ALTER TABLE {schema}.extraction_queue
    DROP CONSTRAINT extraction_queue_status_check,
    ADD CONSTRAINT extraction_queue_status_check
        CHECK (status IN ('pending', 'confirmed', 'dismissed', 'expired', 'refused'));
ALTER TABLE {schema}.extraction_log
    DROP CONSTRAINT extraction_log_event_check,
    ADD CONSTRAINT extraction_log_event_check CHECK (event IN
        ('queued', 'dispatched', 'dispatch_failed', 'confirmed', 'dismissed', 'expired', 'refused'));
