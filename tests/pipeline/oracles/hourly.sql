-- Hourly statistics of connectors from a table `heartbeats`, told by joins: who came before whom, and who was the furthest.
WITH once AS (
    SELECT DISTINCT connector_type, endpoint_identity, instance_id, id, received_at, sent_at, state, uptime_s,
           messages_ingested, messages_failed, source_api_calls, dedupe_accepted
    FROM heartbeats
), numbered AS (
    SELECT *, row_number() OVER (PARTITION BY connector_type, endpoint_identity, instance_id
                                 ORDER BY received_at, id) AS place,
           connector_type || '|' || endpoint_identity || '|' || instance_id AS process
    FROM once
), begun AS (  -- of each life the place where it begins
    SELECT process, 1 AS place, false AS anew FROM numbered WHERE place = 1
    UNION ALL
    SELECT now.process, now.place, true
    FROM numbered AS now JOIN numbered AS last ON last.process = now.process AND last.place = now.place - 1
    WHERE now.uptime_s < last.uptime_s AND now.sent_at > last.sent_at
), lived AS (
    SELECT numbered.*, begun.place AS birth, begun.anew AND begun.place = numbered.place AS first_of_anew
    FROM numbered ASOF JOIN begun ON begun.process = numbered.process AND begun.place <= numbered.place
), news AS (  -- whom nobody of the same life was ahead of when it came
    SELECT * FROM lived
    WHERE NOT EXISTS (
        SELECT 1 FROM lived AS ahead
        WHERE ahead.process = lived.process AND ahead.birth = lived.birth AND ahead.place < lived.place
          AND ahead.uptime_s > lived.uptime_s)
), pairs AS (
    SELECT now.*, before.place IS NULL AS first, now.uptime_s > 43200 AND NOT now.first_of_anew AS unknown,
           before.messages_ingested AS i, before.messages_failed AS f, before.source_api_calls AS c,
           before.dedupe_accepted AS a
    FROM news AS now ASOF LEFT JOIN news AS before
      ON before.process = now.process AND before.birth = now.birth AND before.place < now.place
), grown AS (
    SELECT process, place,
           CASE WHEN first AND unknown THEN 0 WHEN first OR messages_ingested < i THEN messages_ingested
                ELSE messages_ingested - i END AS ingested,
           CASE WHEN first AND unknown THEN 0 WHEN first OR messages_failed < f THEN messages_failed
                ELSE messages_failed - f END AS failed,
           CASE WHEN first AND unknown THEN 0 WHEN first OR source_api_calls < c THEN source_api_calls
                ELSE source_api_calls - c END AS calls,
           CASE WHEN first AND unknown THEN 0 WHEN first OR dedupe_accepted < a THEN dedupe_accepted
                ELSE dedupe_accepted - a END AS accepted
    FROM pairs
)
SELECT connector_type, endpoint_identity, date_trunc('hour', received_at) AS hour,
       least(coalesce(sum(ingested), 0), 9223372036854775807)::bigint AS messages_ingested,
       least(coalesce(sum(failed), 0), 9223372036854775807)::bigint AS messages_failed,
       least(coalesce(sum(calls), 0), 9223372036854775807)::bigint AS source_api_calls,
       least(coalesce(sum(accepted), 0), 9223372036854775807)::bigint AS dedupe_accepted,
       count(*) AS heartbeat_count,
       count(*) FILTER (WHERE state = 'healthy') AS healthy_count,
       count(*) FILTER (WHERE state = 'degraded') AS degraded_count,
       count(*) FILTER (WHERE state = 'error') AS error_count
FROM numbered LEFT JOIN grown USING (process, place)
GROUP BY ALL
ORDER BY 1, 2, 3;
