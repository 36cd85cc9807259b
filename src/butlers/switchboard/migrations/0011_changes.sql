-- Every row says which transaction wrote it as it is now, so that a stream can read all changes and miss none.
--
-- The default is a stable expression: it is computed once for the rows that are there, and no table is rewritten. The
-- index is of ranges of pages: it costs an insert next to nothing and leaves updates in place where they were.

CREATE FUNCTION {schema}.note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_in := pg_current_xact_id()::text::bigint;
    RETURN NEW;
END $$;

ALTER TABLE {schema}.message_inbox
    ADD COLUMN changed_in bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint);
ALTER TABLE {schema}.connector_heartbeat_log
    ADD COLUMN changed_in bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint);
ALTER TABLE {schema}.routing_log
    ADD COLUMN changed_in bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint);

CREATE INDEX message_inbox_changes ON {schema}.message_inbox
    USING brin (changed_in) WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX connector_heartbeat_log_changes ON {schema}.connector_heartbeat_log
    USING brin (changed_in) WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX routing_log_changes ON {schema}.routing_log
    USING brin (changed_in) WITH (pages_per_range = 16, autosummarize = on);

-- Only what the event lake holds makes a new version: a renewed lease is no event.
CREATE TRIGGER note_change BEFORE UPDATE OF
    request_id, received_at, source_channel, policy_tier, pinned_target, submitted_by, lifecycle_state, schema_version,
    prompt_version, model_version, attempts, calls, not_before, progress_at, final_state_at, updated_at,
    request_context, routing_output, dispatch_outcomes, lifecycle_error, override
    ON {schema}.message_inbox FOR EACH ROW EXECUTE FUNCTION {schema}.note_change();
CREATE TRIGGER note_change BEFORE UPDATE
    ON {schema}.connector_heartbeat_log FOR EACH ROW EXECUTE FUNCTION {schema}.note_change();
CREATE TRIGGER note_change BEFORE UPDATE
    ON {schema}.routing_log FOR EACH ROW EXECUTE FUNCTION {schema}.note_change();
