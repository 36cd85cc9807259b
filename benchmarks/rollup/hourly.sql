-- The rollup by the hour, as one would write it in SQL; `heartbeats` are the files, or a table.
SELECT connector_type, endpoint_identity, date_trunc('hour', received_at) AS hour,
       sum(added_messages_ingested) AS messages_ingested,
       sum(added_messages_failed) AS messages_failed,
       sum(added_source_api_calls) AS source_api_calls,
       sum(added_dedupe_accepted) AS dedupe_accepted,
       count(*) AS heartbeat_count,
       count(*) FILTER (WHERE state = 'healthy') AS healthy_count,
       count(*) FILTER (WHERE state = 'degraded') AS degraded_count,
       count(*) FILTER (WHERE state = 'error') AS error_count
FROM heartbeats
GROUP BY 1, 2, 3
