-- The rollup by the hour, as one would write it in SQL with window functions; `heartbeats` are the files.
WITH begun AS (
    SELECT DISTINCT ON (connector_type, endpoint_identity, instance_id, received_at, id) * FROM heartbeats
), anew AS (
    SELECT *, coalesce(uptime_s < lag(uptime_s) OVER process AND sent_at > lag(sent_at) OVER process, false) AS anew
    FROM begun
    WINDOW process AS (PARTITION BY connector_type, endpoint_identity, instance_id ORDER BY received_at, id)
), lived AS (
    SELECT *, sum(anew::int) OVER (
        PARTITION BY connector_type, endpoint_identity, instance_id ORDER BY received_at, id) AS life
    FROM anew
), placed AS (
    SELECT *, coalesce(uptime_s < max(uptime_s) OVER (
        PARTITION BY connector_type, endpoint_identity, instance_id, life ORDER BY received_at, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), false) AS overtaken
    FROM lived
), compared AS (
    SELECT *, uptime_s > 43200 AND NOT anew AS unknown, lag(messages_ingested) OVER news AS i,
           lag(messages_failed) OVER news AS f, lag(source_api_calls) OVER news AS c, lag(dedupe_accepted) OVER news AS a
    FROM placed
    WINDOW news AS (
        PARTITION BY connector_type, endpoint_identity, instance_id, life, overtaken ORDER BY received_at, id)
), grown AS (
    SELECT connector_type, endpoint_identity, received_at, state, overtaken,
           messages_ingested - CASE WHEN i IS NULL AND unknown THEN messages_ingested
                                    WHEN i IS NULL OR messages_ingested < i THEN 0 ELSE i END AS messages_ingested,
           messages_failed - CASE WHEN f IS NULL AND unknown THEN messages_failed
                                  WHEN f IS NULL OR messages_failed < f THEN 0 ELSE f END AS messages_failed,
           source_api_calls - CASE WHEN c IS NULL AND unknown THEN source_api_calls
                                   WHEN c IS NULL OR source_api_calls < c THEN 0 ELSE c END AS source_api_calls,
           dedupe_accepted - CASE WHEN a IS NULL AND unknown THEN dedupe_accepted
                                  WHEN a IS NULL OR dedupe_accepted < a THEN 0 ELSE a END AS dedupe_accepted
    FROM compared
)
SELECT connector_type, endpoint_identity, date_trunc('hour', received_at) AS hour,
       coalesce(sum(messages_ingested) FILTER (WHERE NOT overtaken), 0) AS messages_ingested,
       coalesce(sum(messages_failed) FILTER (WHERE NOT overtaken), 0) AS messages_failed,
       coalesce(sum(source_api_calls) FILTER (WHERE NOT overtaken), 0) AS source_api_calls,
       coalesce(sum(dedupe_accepted) FILTER (WHERE NOT overtaken), 0) AS dedupe_accepted,
       count(*) AS heartbeat_count,
       count(*) FILTER (WHERE state = 'healthy') AS healthy_count,
       count(*) FILTER (WHERE state = 'degraded') AS degraded_count,
       count(*) FILTER (WHERE state = 'error') AS error_count
FROM grown
GROUP BY ALL
