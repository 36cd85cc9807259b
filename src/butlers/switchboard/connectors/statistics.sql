-- name: connector
-- One connector as its last heartbeat left it.
SELECT * FROM {schema}.connector_registry WHERE connector_type = $1 AND endpoint_identity = $2;

-- name: connectors_seen
-- All that ever reported, with how they are.
SELECT connector_type, endpoint_identity, state, version, last_heartbeat_at FROM {schema}.connector_registry;

-- name: rolled_up_until
-- Until when hours, days and messages by butler have been rolled up; NULL: never.
SELECT (SELECT max(hour) + interval '1 hour' FROM {schema}.connector_stats_hourly) AS hourly,
       (SELECT (max(day) + 1)::timestamp AT TIME ZONE 'UTC' FROM {schema}.connector_stats_daily) AS daily,
       (SELECT (max(day) + 1)::timestamp AT TIME ZONE 'UTC' FROM {schema}.connector_fanout_daily) AS fanout;

-- name: hours_of_connector
-- What one connector did, hour by hour since a moment.
SELECT hour AS start, messages_ingested, messages_failed, source_api_calls, dedupe_accepted, heartbeat_count,
       healthy_count, degraded_count, error_count, NULL::double precision AS uptime_pct
FROM {schema}.connector_stats_hourly
WHERE connector_type = $1 AND endpoint_identity = $2 AND hour >= $3
ORDER BY hour;

-- name: days_of_connector
-- The same day by day since a day; an uptime that is NULL is not known.
SELECT day::timestamp AT TIME ZONE 'UTC' AS start, messages_ingested, messages_failed, source_api_calls,
       dedupe_accepted, heartbeat_count, healthy_count, degraded_count, error_count,
       uptime_pct::double precision AS uptime_pct
FROM {schema}.connector_stats_daily
WHERE connector_type = $1 AND endpoint_identity = $2 AND day >= ($3::timestamptz AT TIME ZONE 'UTC')::date
ORDER BY day;

-- name: days_by_connector
-- What each connector did in the days since a moment, added up; a sum that is too large is shown as the largest.
SELECT connector_type, endpoint_identity,
       least(sum(messages_ingested), 9223372036854775807)::bigint AS messages_ingested,
       least(sum(messages_failed), 9223372036854775807)::bigint AS messages_failed,
       least(sum(source_api_calls), 9223372036854775807)::bigint AS source_api_calls,
       least(sum(dedupe_accepted), 9223372036854775807)::bigint AS dedupe_accepted,
       sum(heartbeat_count)::bigint AS heartbeat_count, sum(healthy_count)::bigint AS healthy_count,
       sum(degraded_count)::bigint AS degraded_count, sum(error_count)::bigint AS error_count
FROM {schema}.connector_stats_daily
WHERE day >= ($1::timestamptz AT TIME ZONE 'UTC')::date
GROUP BY 1, 2;

-- name: fanout
-- How many messages of each connector went to each butler since a day.
SELECT source_channel, source_endpoint_identity, target_butler,
       least(sum(message_count), 9223372036854775807)::bigint AS messages
FROM {schema}.connector_fanout_daily
WHERE day >= ($1::timestamptz AT TIME ZONE 'UTC')::date
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3;
