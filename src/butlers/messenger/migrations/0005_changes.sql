-- Every row says which transaction wrote it as it is now, so that a stream can read all changes and miss none. The default
-- is computed once for the rows that are there; no table is rewritten.

CREATE FUNCTION {schema}.note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_in := pg_current_xact_id()::text::bigint;
    RETURN NEW;
END $$;

ALTER TABLE {schema}.delivery_requests
    ADD COLUMN changed_in bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint);
ALTER TABLE {schema}.delivery_attempts
    ADD COLUMN changed_in bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint);
ALTER TABLE {schema}.delivery_receipts
    ADD COLUMN changed_in bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint);

CREATE INDEX delivery_requests_changes ON {schema}.delivery_requests
    USING brin (changed_in) WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX delivery_attempts_changes ON {schema}.delivery_attempts
    USING brin (changed_in) WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX delivery_receipts_changes ON {schema}.delivery_receipts
    USING brin (changed_in) WITH (pages_per_range = 16, autosummarize = on);

-- Only what the event lake holds makes a new version: a renewed lease is no event.
CREATE TRIGGER note_change BEFORE UPDATE OF
    id, request_id, origin_butler, channel, identity_scope, intent, priority, rank, not_after, duplicate_detection,
    status, attempts, next_attempt_at, terminal_error_class, terminal_retryable, admitted, replay_of, action_id,
    created_at, updated_at, terminal_at, settled_at, idempotency_key
    ON {schema}.delivery_requests FOR EACH ROW EXECUTE FUNCTION {schema}.note_change();
CREATE TRIGGER note_change BEFORE UPDATE
    ON {schema}.delivery_attempts FOR EACH ROW EXECUTE FUNCTION {schema}.note_change();
CREATE TRIGGER note_change BEFORE UPDATE
    ON {schema}.delivery_receipts FOR EACH ROW EXECUTE FUNCTION {schema}.note_change();
