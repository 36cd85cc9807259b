-- Deliveries asked for in the window: in all, and by {columns} (one or more of the properties below).
WITH wanted AS (
    SELECT id, status, attempts, channel, identity_scope, intent, origin_butler, priority,
           status AS outcome, terminal_error_class AS error_class,
           strftime(created_at, '%Y-%m-%dT%H:00:00Z') AS hour, strftime(created_at, '%Y-%m-%d') AS day,
           CASE WHEN status = 'delivered' THEN (epoch_us(terminal_at) - epoch_us(created_at)) / 1000.0 END AS took_ms
    FROM delivery_requests
    WHERE created_at >= getvariable('window_start') AND created_at < getvariable('window_end')
), counted AS (
    SELECT {grouped}, grouping({columns}) <> 0 AS overall, count(*) AS total,
           count(*) FILTER (status = 'delivered') AS delivered, count(*) FILTER (status = 'failed') AS failed,
           count(*) FILTER (status = 'dead_lettered') AS dead_lettered, count(*) FILTER (status = 'uncertain') AS uncertain,
           count(*) FILTER (status = 'expired') AS expired, count(*) FILTER (attempts > 0) AS attempted,
           count(*) FILTER (attempts > 1) AS retried,
           quantile_cont(took_ms, 0.50) AS p50_ms, quantile_cont(took_ms, 0.95) AS p95_ms,
           quantile_cont(took_ms, 0.99) AS p99_ms
    FROM wanted GROUP BY GROUPING SETS ((), ({columns}))
), timed AS (
    SELECT {grouped}, grouping({columns}) <> 0 AS overall,
           quantile_cont(latency_ms::double, 0.50) AS provider_p50_ms,
           quantile_cont(latency_ms::double, 0.95) AS provider_p95_ms,
           quantile_cont(latency_ms::double, 0.99) AS provider_p99_ms
    FROM wanted JOIN (SELECT delivery_id, latency_ms FROM delivery_attempts) AS attempt ON attempt.delivery_id = wanted.id
    GROUP BY GROUPING SETS ((), ({columns}))
), door AS (
    SELECT sum(requests) FILTER (outcome = 'admitted') AS requests_admitted,
           sum(requests) FILTER (outcome = 'deduplicated') AS requests_deduplicated,
           sum(requests) FILTER (outcome = 'parked') AS requests_parked,
           sum(requests) FILTER (outcome = 'rejected') AS requests_rejected
    FROM admission_outcomes
    WHERE minute >= date_trunc('minute', getvariable('window_start')) AND minute < getvariable('window_end')
), ended AS (
    SELECT *, delivered + failed + dead_lettered + uncertain + expired AS ended FROM counted
)
SELECT CASE WHEN ended.overall THEN '' ELSE '{columns}' END AS grouping,
       CASE WHEN ended.overall THEN '{}' ELSE json_object({pairs})::text END AS group_values,
       total, delivered, failed, dead_lettered, uncertain, expired, total - ended AS open, attempted, retried,
       delivered / nullif(ended, 0)::double AS success_rate, dead_lettered / nullif(ended, 0)::double AS dead_letter_rate,
       retried / nullif(attempted, 0)::double AS retry_rate, p50_ms, p95_ms, p99_ms,
       provider_p50_ms, provider_p95_ms, provider_p99_ms,
       CASE WHEN ended.overall THEN requests_admitted END AS requests_admitted,
       CASE WHEN ended.overall THEN requests_deduplicated END AS requests_deduplicated,
       CASE WHEN ended.overall THEN requests_parked END AS requests_parked,
       CASE WHEN ended.overall THEN requests_rejected END AS requests_rejected
FROM ended LEFT JOIN timed ON timed.overall = ended.overall AND {same} CROSS JOIN door;
