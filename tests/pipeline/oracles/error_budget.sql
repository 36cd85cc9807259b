-- Good and bad events of every channel in (window_end - length, window_end], by length in seconds. Each kind of attempt
-- that counts is listed by itself.
WITH made AS (
    SELECT d.channel, d.identity_scope, a.started_at AS moment, a.outcome, a.certainty, a.error_class,
           a.retryable IS TRUE AS again, a.started_at > d.not_after IS TRUE AS late,
           EXISTS (FROM recipient_rules r WHERE r.rule = 'suppressed' AND r.target = d.target_identity
                   AND r.channel IN (d.channel, d.channel || '.' || d.identity_scope)) AS blocked
    FROM delivery_attempts a JOIN delivery_requests d ON d.id = a.delivery_id
    WHERE a.completed_at IS NOT NULL
), events AS (
    SELECT channel, identity_scope, moment, true AS good FROM made WHERE outcome = 'sent'
    UNION ALL
    SELECT channel, identity_scope, moment, false FROM made
    WHERE outcome <> 'sent' AND NOT late AND NOT (outcome = 'rejected' AND NOT again AND blocked)
      AND (certainty = 'uncertain'
           OR (outcome <> 'lost' AND (again OR error_class IN ('target_unavailable', 'timeout', 'internal_error'))))
    UNION ALL
    SELECT channel, identity_scope, terminal_at, false FROM delivery_requests
    WHERE status IN ('failed', 'dead_lettered')
      AND terminal_error_class IN ('target_unavailable', 'timeout', 'internal_error')
      AND id NOT IN (SELECT delivery_id FROM delivery_attempts WHERE outcome IN ('rejected', 'failed'))
)
SELECT window_s, channel, identity_scope, count(*) FILTER (good) AS good, count(*) FILTER (NOT good) AS bad
FROM events, (VALUES (21600::bigint), (86400), (259200), (2592000)) AS lengths(window_s)
WHERE epoch_us(moment) <= epoch_us(getvariable('window_end'))
  AND epoch_us(moment) > epoch_us(getvariable('window_end')) - window_s * 1000000
GROUP BY ALL ORDER BY ALL;
