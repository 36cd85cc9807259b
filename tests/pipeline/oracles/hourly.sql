-- Hourly statistics of connectors from a table `heartbeats`: when a process began tells its lives apart.
WITH once AS (
    SELECT DISTINCT connector_type, endpoint_identity, instance_id, id, received_at, sent_at, state, uptime_s,
           messages_ingested, messages_failed, source_api_calls, dedupe_accepted
    FROM heartbeats
), lived AS (
    SELECT *, (epoch_us(sent_at) - round(uptime_s * 1000000)::bigint) // 1000000 AS began,
           row_number() OVER (PARTITION BY connector_type, endpoint_identity, instance_id
                              ORDER BY received_at, id) = 1 AND uptime_s > 43200 AS unknown
    FROM once
), placed AS (
    SELECT *, coalesce(uptime_s <= max(uptime_s) OVER (
        PARTITION BY connector_type, endpoint_identity, instance_id, began ORDER BY received_at, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), false) AS late
    FROM lived
), compared AS (
    SELECT *, lag(messages_ingested, 1, 0) OVER life AS i, lag(messages_failed, 1, 0) OVER life AS f,
           lag(source_api_calls, 1, 0) OVER life AS c, lag(dedupe_accepted, 1, 0) OVER life AS a
    FROM placed
    WINDOW life AS (
        PARTITION BY connector_type, endpoint_identity, instance_id, began, late ORDER BY received_at, id)
), grown AS (
    SELECT *, late OR unknown AS nothing,
           messages_ingested - CASE WHEN messages_ingested < i THEN 0 ELSE i END AS ingested,
           messages_failed - CASE WHEN messages_failed < f THEN 0 ELSE f END AS failed,
           source_api_calls - CASE WHEN source_api_calls < c THEN 0 ELSE c END AS calls,
           dedupe_accepted - CASE WHEN dedupe_accepted < a THEN 0 ELSE a END AS accepted
    FROM compared
)
SELECT connector_type, endpoint_identity, date_trunc('hour', received_at) AS hour,
       least(coalesce(sum(ingested) FILTER (WHERE NOT nothing), 0), 9223372036854775807)::bigint AS messages_ingested,
       least(coalesce(sum(failed) FILTER (WHERE NOT nothing), 0), 9223372036854775807)::bigint AS messages_failed,
       least(coalesce(sum(calls) FILTER (WHERE NOT nothing), 0), 9223372036854775807)::bigint AS source_api_calls,
       least(coalesce(sum(accepted) FILTER (WHERE NOT nothing), 0), 9223372036854775807)::bigint AS dedupe_accepted,
       count(*) AS heartbeat_count,
       count(*) FILTER (WHERE state = 'healthy') AS healthy_count,
       count(*) FILTER (WHERE state = 'degraded') AS degraded_count,
       count(*) FILTER (WHERE state = 'error') AS error_count
FROM grown
GROUP BY ALL
ORDER BY 1, 2, 3;
