-- Daily statistics of connectors from a table `hours`.
SELECT connector_type, endpoint_identity, hour::date AS day,
       least(sum(messages_ingested), 9223372036854775807)::bigint AS messages_ingested,
       least(sum(messages_failed), 9223372036854775807)::bigint AS messages_failed,
       least(sum(source_api_calls), 9223372036854775807)::bigint AS source_api_calls,
       least(sum(dedupe_accepted), 9223372036854775807)::bigint AS dedupe_accepted,
       sum(heartbeat_count)::bigint AS heartbeat_count,
       sum(healthy_count)::bigint AS healthy_count,
       sum(degraded_count)::bigint AS degraded_count,
       sum(error_count)::bigint AS error_count,
       -- Per mille of a percent in whole numbers, and a half goes up.
       ((sum(healthy_count)::hugeint * 100000 // sum(heartbeat_count)::hugeint + 5) // 10 / 100.0)::decimal(5, 2)
           AS uptime_pct
FROM hours
GROUP BY ALL
ORDER BY 1, 2, 3;
