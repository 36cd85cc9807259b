-- Every service level indicator of the window, a row each: sli, dimensions, events, part, p50_ms, p95_ms, p99_ms, counts.
-- Written on its own: families by descending from the roots, suppression and excuses as lists of ids.
WITH RECURSIVE bounds AS (
    SELECT getvariable('window_start') AS lo, getvariable('window_end') AS hi,
           date_trunc('minute', getvariable('window_start')) AS minute
), ended AS (
    SELECT d.* FROM delivery_requests d, bounds
    WHERE terminal_at >= lo AND terminal_at < hi
      AND status IN ('delivered', 'failed', 'dead_lettered', 'expired', 'uncertain')
), blocked AS (
    SELECT DISTINCT d.id FROM delivery_requests d, recipient_rules r
    WHERE r.rule = 'suppressed' AND r.target = d.target_identity
      AND (r.channel = d.channel OR r.channel = d.channel || '.' || d.identity_scope)
), excused AS (
    SELECT id FROM ended WHERE status IN ('failed', 'dead_lettered') AND terminal_error_class = 'validation_error'
    UNION
    SELECT id FROM ended WHERE status IN ('failed', 'dead_lettered') AND terminal_error_class = 'target_unavailable'
      AND terminal_retryable = false AND id IN (FROM blocked)
), success AS (
    SELECT channel, identity_scope, count(*) FILTER (id NOT IN (FROM excused)) AS events,
           count(*) FILTER (status = 'delivered') AS part,
           json_object('delivered', count(*) FILTER (status = 'delivered'),
                       'failed', count(*) FILTER (status = 'failed' AND id NOT IN (FROM excused)),
                       'dead_lettered', count(*) FILTER (status = 'dead_lettered' AND id NOT IN (FROM excused)),
                       'expired', count(*) FILTER (status = 'expired'),
                       'uncertain', count(*) FILTER (status = 'uncertain'),
                       'excused', count(*) FILTER (id IN (FROM excused))) AS counts
    FROM ended GROUP BY ALL
), latency AS (
    SELECT channel, identity_scope, intent, list((epoch_us(terminal_at) - epoch_us(created_at)) / 1000.0) AS took
    FROM ended WHERE status = 'delivered' AND action_id IS NULL AND settled_at IS NULL GROUP BY ALL
), descent AS (
    SELECT id AS root, id, created_at, status FROM delivery_requests WHERE replay_of IS NULL
    UNION ALL
    SELECT descent.root, d.id, d.created_at, d.status FROM descent JOIN delivery_requests d ON d.replay_of = descent.id
), again AS (
    SELECT late.id FROM descent late JOIN ended ON ended.id = late.id AND ended.status = 'delivered'
    WHERE late.id <> late.root AND EXISTS (
        FROM descent early WHERE early.root = late.root AND early.status = 'delivered' AND early.id <> late.id
          AND (early.id = early.root OR (early.created_at, early.id) < (late.created_at, late.id)))
), sends AS (
    SELECT delivery_id, count(*) FILTER (a.certainty = 'sent') AS sent, count(*) FILTER (a.certainty = 'uncertain') AS doubt
    FROM delivery_attempts a JOIN ended ON ended.id = a.delivery_id AND ended.status = 'delivered' GROUP BY ALL
), twice AS (
    SELECT (SELECT count(*) FROM ended WHERE status = 'delivered') AS events,
           (SELECT coalesce(sum(greatest(sent - 1, 0)), 0)::bigint FROM sends) AS sent_again,
           (SELECT count(*) FROM again) AS delivered_again,
           (SELECT count(*) FROM sends WHERE sent > 0 AND doubt > 0) AS possible
), door AS (
    SELECT channel, outcome, rule, requests,
           outcome = 'rejected' AND rule IN ('throttle', 'in_flight', 'global', 'channel', 'recipient', 'fair_share', 'breaker') AS full_up
    FROM admission_outcomes, bounds WHERE admission_outcomes.minute >= bounds.minute AND admission_outcomes.minute < hi
), rules AS (
    SELECT channel, json_group_object(rule, requests) AS by_rule
    FROM (SELECT channel, rule, sum(requests)::bigint AS requests FROM door WHERE full_up GROUP BY ALL) GROUP BY ALL
), admission AS (
    SELECT channel, coalesce(sum(requests) FILTER (outcome = 'admitted'), 0)::bigint AS admitted,
           coalesce(sum(requests) FILTER (full_up), 0)::bigint AS rejected
    FROM door GROUP BY GROUPING SETS ((), (channel))
), letters AS (
    SELECT channel, grouping(channel) AS overall, count(*) AS events, count(discarded_at) AS discarded
    FROM delivery_dead_letter, bounds WHERE created_at >= lo AND created_at < hi GROUP BY GROUPING SETS ((), (channel))
), doubts AS (
    SELECT channel, identity_scope, count(*) AS events,
           count(*) FILTER (status <> 'delivered' AND settled_at IS NULL) AS unsettled
    FROM delivery_requests
    WHERE id IN (SELECT delivery_id FROM delivery_attempts, bounds
                 WHERE certainty = 'uncertain' AND started_at >= lo AND started_at < hi)
    GROUP BY GROUPING SETS ((), (channel, identity_scope))
), accepts AS (
    SELECT source_channel, list_sort(flatten(list(list_transform(range(messages), lambda x: accept_ms)))) AS took
    FROM ingress_accept_times t, bounds WHERE t.minute >= bounds.minute AND t.minute < hi GROUP BY ALL
), requests AS (
    SELECT m.*, override IS NOT NULL AS decided,
           override IS NULL AND progress_at IS NULL AND final_state_at IS NOT NULL AS shed,
           (epoch_us(final_state_at) - epoch_us(received_at)) / 1000.0 AS whole_ms,
           (epoch_us(final_state_at) - epoch_us(progress_at)) / 1000.0 AS worked_ms
    FROM message_inbox m, bounds WHERE received_at >= lo AND received_at < hi
), completion AS (
    SELECT source_channel, policy_tier, count(*) AS events,
           list(whole_ms) FILTER (NOT decided AND progress_at IS NOT NULL AND whole_ms IS NOT NULL) AS took,
           json_object('open', count(*) FILTER (lifecycle_state IN ('accepted', 'progress')),
                       'parsed', count(*) FILTER (lifecycle_state = 'parsed' AND NOT decided),
                       'errored', count(*) FILTER (lifecycle_state = 'errored' AND NOT decided AND NOT shed),
                       'shed', count(*) FILTER (shed),
                       'decided_by_a_person', count(*) FILTER (decided AND lifecycle_state IN ('parsed', 'errored'))) AS counts
    FROM requests GROUP BY ALL
), interactive AS (
    SELECT source_channel, lifecycle_state, list(worked_ms) AS took FROM requests
    WHERE (source_channel = 'telegram' OR policy_tier = 'interactive') AND worked_ms IS NOT NULL AND NOT decided
    GROUP BY ALL
), routes AS (
    SELECT r.* FROM routing_log r, bounds WHERE created_at >= lo AND created_at < hi
), errors AS (
    SELECT target_butler, json_group_object(error_class, n) AS by_class
    FROM (SELECT target_butler, error_class, count(*) AS n FROM routes WHERE NOT success GROUP BY ALL) GROUP BY ALL
), routed AS (
    SELECT target_butler, count(*) AS events, count(*) FILTER (success) AS part
    FROM routes GROUP BY GROUPING SETS ((), (target_butler))
), everything AS (
    SELECT 'delivery_success' AS sli, json_object('channel', channel, 'identity_scope', identity_scope) AS dimensions,
           events, part, NULL::double[] AS took, false AS counted, counts FROM success
    UNION ALL
    SELECT 'delivery_latency', json_object('channel', channel, 'identity_scope', identity_scope, 'intent', intent),
           len(took), NULL, took, false, '{}' FROM latency
    UNION ALL
    SELECT 'duplicates', '{}', events, sent_again + delivered_again, NULL, false,
           json_object('sent_again', sent_again, 'delivered_again', delivered_again, 'possible', possible) FROM twice
    UNION ALL
    SELECT 'replay_success', '{}', count(*), count(*) FILTER (status = 'delivered'), NULL, false, '{}'
    FROM ended WHERE replay_of IS NOT NULL
    UNION ALL
    SELECT 'admission_rejection',
           CASE WHEN admission.channel IS NULL THEN '{}' ELSE json_object('channel', admission.channel) END,
           admitted + rejected, rejected, NULL, false,
           CASE WHEN admission.channel IS NULL THEN json_object('admitted', admitted, 'rejected', rejected)
                ELSE json_object('admitted', admitted, 'rejected', rejected, 'by_rule', coalesce(by_rule, '{}'::json)) END
    FROM admission LEFT JOIN rules ON rules.channel = admission.channel
    UNION ALL
    SELECT 'dead_letters', CASE WHEN overall = 1 THEN '{}' ELSE json_object('channel', channel) END,
           events, NULL, NULL, false, json_object('discarded', discarded) FROM letters
    UNION ALL
    SELECT 'uncertain_settlement',
           CASE WHEN channel IS NULL THEN '{}' ELSE json_object('channel', channel, 'identity_scope', identity_scope) END,
           events, events - unsettled, NULL, false, json_object('unsettled', unsettled) FROM doubts
    UNION ALL
    SELECT 'accept_latency', json_object('source_channel', source_channel), len(took), NULL, took, true, '{}' FROM accepts
    UNION ALL
    SELECT 'completion_latency', json_object('source_channel', source_channel, 'policy_tier', policy_tier),
           events, NULL, took, false, counts FROM completion
    UNION ALL
    SELECT 'interactive_latency', json_object('source_channel', source_channel, 'lifecycle_state', lifecycle_state),
           len(took), NULL, took, false, '{}' FROM interactive
    UNION ALL
    SELECT 'route_success',
           CASE WHEN routed.target_butler IS NULL THEN '{}' ELSE json_object('target_butler', routed.target_butler) END,
           events, part, NULL, false,
           CASE WHEN routed.target_butler IS NULL THEN '{}' ELSE coalesce(by_class, '{}'::json) END
    FROM routed LEFT JOIN errors ON errors.target_butler = routed.target_butler
)
SELECT sli, dimensions::text AS dimensions, events, part, part / nullif(events, 0)::double AS rate,
       CASE WHEN counted THEN list_aggregate(took, 'quantile_disc', 0.50) ELSE list_aggregate(took, 'quantile_cont', 0.50) END AS p50_ms,
       CASE WHEN counted THEN list_aggregate(took, 'quantile_disc', 0.95) ELSE list_aggregate(took, 'quantile_cont', 0.95) END AS p95_ms,
       CASE WHEN counted THEN list_aggregate(took, 'quantile_disc', 0.99) ELSE list_aggregate(took, 'quantile_cont', 0.99) END AS p99_ms,
       counts::text AS counts
FROM everything ORDER BY ALL;
