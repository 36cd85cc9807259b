-- Each heartbeat carries what it added to the statistics of its connector, computed when it arrives.

-- NULL: the row is older than this migration, and the rollup compares counters itself.
ALTER TABLE {schema}.connector_heartbeat_log
    ADD COLUMN added_messages_ingested bigint,
    ADD COLUMN added_messages_failed   bigint,
    ADD COLUMN added_source_api_calls  bigint,
    ADD COLUMN added_dedupe_accepted   bigint;

-- Empty as soon as the rows of before are pruned.
CREATE INDEX connector_heartbeat_log_without_deltas ON {schema}.connector_heartbeat_log (received_at)
    WHERE added_messages_ingested IS NULL;

-- What the intake compares the next heartbeat of a process with.
CREATE TABLE {schema}.connector_processes (
    connector_type    text        NOT NULL,
    endpoint_identity text        NOT NULL,
    instance_id       uuid        NOT NULL,
    last_heartbeat_at timestamptz NOT NULL,
    lives             jsonb       NOT NULL,             -- the furthest heartbeat of each life, the current life last
    PRIMARY KEY (connector_type, endpoint_identity, instance_id)
);

CREATE INDEX connector_processes_by_age ON {schema}.connector_processes (last_heartbeat_at);

-- Processes that go on: their next heartbeat is compared with the last one that they sent.
INSERT INTO {schema}.connector_processes (connector_type, endpoint_identity, instance_id, last_heartbeat_at, lives)
SELECT DISTINCT ON (connector_type, endpoint_identity, instance_id)
    connector_type, endpoint_identity, instance_id, received_at,
    jsonb_build_array(jsonb_build_object(
        'uptime', (uptime_s * 1000000)::bigint,
        'sent', (extract(epoch FROM sent_at) * 1000000)::bigint,
        'received', (extract(epoch FROM received_at) * 1000000)::bigint,
        'counts', jsonb_build_array(messages_ingested, messages_failed, source_api_calls, dedupe_accepted),
        'overcounted', '[0, 0, 0, 0]'::jsonb))
FROM {schema}.connector_heartbeat_log
WHERE uptime_s <= 3153600000 AND isfinite(sent_at)
ORDER BY connector_type, endpoint_identity, instance_id, sent_at DESC, received_at DESC, id DESC;
