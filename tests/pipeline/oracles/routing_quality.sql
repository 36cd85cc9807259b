-- What pipeline.routing_quality must hold: from inbox, log and audit; $ws, $we: the window, $bs, $be: its baseline.
WITH reroute AS (
    SELECT request_id, performed_at, payload ->> 'target' AS target, outcome_details ->> 'was' AS was,
           coalesce(CAST(outcome_details -> 'handed_to' AS varchar[]), []) AS handed_to,
           row_number() OVER (PARTITION BY request_id ORDER BY performed_at, id) AS nth,
           row_number() OVER (PARTITION BY request_id ORDER BY performed_at DESC, id DESC) AS nth_last
    FROM audit WHERE action = 'manual_reroute' AND outcome IN ('success', 'partial')
), said AS (
    SELECT f.request_id, f.performed_at AS corrected_at, f.was, f.handed_to, l.target AS right_target
    FROM reroute AS f JOIN reroute AS l USING (request_id) WHERE f.nth = 1 AND l.nth_last = 1
), line AS (
    SELECT log.*, split_part(log.segment_id, '~', 1) AS part FROM log LEFT JOIN said USING (request_id)
    WHERE said.request_id IS NULL OR log.created_at <= said.corrected_at
), last_line AS (
    SELECT * FROM line QUALIFY row_number() OVER (PARTITION BY request_id, part ORDER BY created_at DESC, id DESC) = 1
), last_of_request AS (
    SELECT * FROM line QUALIFY row_number() OVER (PARTITION BY request_id ORDER BY created_at DESC, id DESC) = 1
), again AS (
    SELECT request_id, max(lines) > 1 AS redecided, max(CASE WHEN lines > 1 THEN targets ELSE 1 END) = 1 AS same
    FROM (SELECT request_id, part, count(*) AS lines, count(DISTINCT target_butler) AS targets FROM line GROUP BY ALL)
    GROUP BY request_id
), message AS (
    SELECT inbox.*, CASE WHEN received_at >= $ws AND received_at < $we THEN 'now' ELSE 'past' END AS era,
           said.right_target, said.was, said.handed_to, said.request_id IS NOT NULL AS rerouted,
           CASE WHEN said.request_id IS NULL THEN CASE WHEN (routing_output -> 'segments') IS NULL THEN 'none' ELSE 'own' END
                WHEN EXISTS (SELECT 1 FROM line WHERE line.request_id = inbox.request_id) THEN 'logged'
                WHEN len(said.handed_to) > 0 THEN 'handed' ELSE 'none' END AS kind
    FROM inbox LEFT JOIN said USING (request_id)
    WHERE (received_at >= $ws AND received_at < $we) OR (received_at >= $bs AND received_at < $be)
), segment AS (
    SELECT request_id, split_part(s ->> 'segment_id', '~', 1) AS part, s ->> 'butler' AS butler
    FROM (SELECT request_id, unnest(CAST(routing_output -> 'segments' AS json[])) AS s FROM message WHERE kind = 'own')
), choice AS (
    SELECT request_id, butler AS target FROM segment
    UNION SELECT request_id, target_butler FROM last_line JOIN message USING (request_id) WHERE kind = 'logged'
    UNION SELECT request_id, unnest(handed_to) FROM message WHERE kind = 'handed'
), piece AS (
    SELECT request_id, target_butler AS target, NOT success AS failed
    FROM last_line JOIN message USING (request_id)
    WHERE kind = 'logged'
       OR (kind = 'own' AND (request_id, part) IN (SELECT (request_id, part) FROM segment))
), tally AS (
    SELECT request_id, count(*) AS parts, count(*) FILTER (failed) AS bad FROM piece GROUP BY request_id
), told AS (
    SELECT m.request_id, m.era, m.received_at, m.source_channel, m.normalized_text, m.kind, m.right_target,
           CASE m.kind WHEN 'own' THEN m.routing_output ->> 'router' WHEN 'logged' THEN l.router
                       WHEN 'handed' THEN 'unknown' ELSE 'none' END AS router,
           coalesce(CASE m.kind WHEN 'own' THEN m.routing_output ->> 'model_version' WHEN 'logged' THEN l.model_version
                                WHEN 'handed' THEN m.model_version END, '') AS model_version,
           coalesce(CASE m.kind WHEN 'own' THEN m.routing_output ->> 'prompt_version' WHEN 'logged' THEN l.prompt_version
                                WHEN 'handed' THEN m.prompt_version END, '') AS prompt_version,
           CASE m.kind WHEN 'own' THEN (SELECT count(*) FROM segment AS s WHERE s.request_id = m.request_id)
                       WHEN 'logged' THEN t.parts WHEN 'handed' THEN len(m.handed_to) ELSE 0 END AS segments,
           CASE WHEN m.kind = 'own' THEN (
               SELECT string_agg(concat_ws('/', s ->> 'butler', s ->> 'start', s ->> 'end'), ';')
               FROM (SELECT unnest(CAST(m.routing_output -> 'segments' AS json[])) AS s)) END AS shape,
           coalesce(t.parts, 0) AS dispatches, coalesce(t.bad, 0) AS failed_dispatches,
           coalesce(a.redecided, false) AS redecided, coalesce(a.redecided AND a.same, false) AS redecided_same,
           CASE WHEN NOT m.rerouted AND m.lifecycle_state IN ('accepted', 'progress') THEN 'open'
                WHEN NOT m.rerouted AND coalesce(m.override ->> 'action', '') IN ('cancel', 'abort') THEN 'stopped'
                WHEN coalesce(t.bad, 0) = 0 AND (CASE WHEN m.rerouted THEN m.was ELSE m.lifecycle_state END) <> 'errored'
                    THEN 'ok'
                WHEN coalesce(t.parts, 0) > coalesce(t.bad, 0) THEN 'partial' ELSE 'total' END AS ending
    FROM message AS m LEFT JOIN last_of_request AS l USING (request_id) LEFT JOIN tally AS t USING (request_id)
    LEFT JOIN again AS a USING (request_id)
), counted AS (
    SELECT *, CASE WHEN router IN ('local', 'llm', 'fallback') AND shape IS NOT NULL THEN 1 ELSE 0 END AS by_text
    FROM told WHERE router <> 'none' OR ending = 'total'
), known AS (
    SELECT *, lag(shape) OVER (PARTITION BY era, normalized_text, by_text ORDER BY received_at, request_id) AS before
    FROM counted
), fact AS (
    SELECT request_id, era, router, model_version, prompt_version, source_channel,
           CAST(router <> 'none' AS int) AS decisions,
           CAST(right_target IS NOT NULL AND (SELECT list(target) FROM choice AS c WHERE c.request_id = known.request_id)
                IS DISTINCT FROM [right_target] AS int) AS corrected,
           CAST(router = 'fallback' AS int) AS fallbacks,
           CAST(router <> 'fallback' AND EXISTS (SELECT 1 FROM choice AS c WHERE c.request_id = known.request_id
                AND c.target = 'general') AS int) AS general_chosen,
           CAST(segments > 1 AS int) AS multi_segment,
           CAST(by_text = 1 AND before IS NOT NULL AS int) AS repeats,
           CAST(by_text = 1 AND before IS NOT NULL AND before = shape AS int) AS repeats_same,
           CAST(redecided AS int) AS redecided, CAST(redecided_same AS int) AS redecided_same,
           dispatches, failed_dispatches,
           CAST(ending = 'partial' AS int) AS partial_failures, CAST(ending = 'total' AS int) AS total_failures
    FROM known
), of_target AS (
    SELECT f.* EXCLUDE (dispatches, failed_dispatches), c.target,
           (SELECT count(*) FROM piece AS p WHERE p.request_id = f.request_id AND p.target = c.target) AS dispatches,
           (SELECT count(*) FROM piece AS p WHERE p.request_id = f.request_id AND p.target = c.target AND p.failed)
               AS failed_dispatches
    FROM fact AS f JOIN choice AS c USING (request_id) WHERE era = 'now'
), slice AS (
    SELECT if(grouping(router) = 1, '*', router) AS router,
           if(grouping(model_version) = 1, '*', model_version) AS model_version,
           if(grouping(prompt_version) = 1, '*', prompt_version) AS prompt_version,
           if(grouping(source_channel) = 1, '*', source_channel) AS source_channel, '*' AS target_butler,
           count(*) AS requests, sum(COLUMNS(f.* EXCLUDE (request_id, era, router, model_version, prompt_version,
                                                          source_channel)))
    FROM fact AS f WHERE era = 'now'
    GROUP BY GROUPING SETS ((), (model_version, prompt_version), (router, model_version, prompt_version),
                            (source_channel), (source_channel, model_version, prompt_version))
    HAVING count(*) > 0
    UNION ALL BY NAME
    SELECT '*' AS router, if(grouping(model_version) = 1, '*', model_version) AS model_version,
           if(grouping(prompt_version) = 1, '*', prompt_version) AS prompt_version, '*' AS source_channel,
           target AS target_butler, count(*) AS requests,
           sum(COLUMNS(o.* EXCLUDE (request_id, era, router, model_version, prompt_version, source_channel, target)))
    FROM of_target AS o GROUP BY GROUPING SETS ((target), (target, model_version, prompt_version))
), chosen AS (
    SELECT era, if(grouping(router) = 1, '*', router) AS router,
           if(grouping(model_version) = 1, '*', model_version) AS model_version,
           if(grouping(prompt_version) = 1, '*', prompt_version) AS prompt_version,
           if(grouping(source_channel) = 1, '*', source_channel) AS source_channel, target, count(*) AS n
    FROM fact JOIN choice USING (request_id)
    GROUP BY GROUPING SETS ((era, target), (era, router, target), (era, model_version, prompt_version, target),
                            (era, router, model_version, prompt_version, target), (era, source_channel, target),
                            (era, source_channel, model_version, prompt_version, target))
), share AS (
    SELECT *, n / sum(n) OVER (PARTITION BY era, router, model_version, prompt_version, source_channel) AS part
    FROM chosen
), grid AS (
    SELECT s.router, s.model_version, s.prompt_version, s.source_channel, t.target,
           coalesce(p.part, 0) AS p, coalesce(q.part, 0) AS q
    FROM (SELECT * FROM slice WHERE target_butler = '*') AS s CROSS JOIN (SELECT DISTINCT target FROM choice) AS t
    LEFT JOIN share AS p ON p.era = 'now' AND p.router = s.router AND p.model_version = s.model_version
        AND p.prompt_version = s.prompt_version AND p.source_channel = s.source_channel AND p.target = t.target
    LEFT JOIN share AS q ON q.era = 'past' AND q.router = s.router AND q.model_version = '*'
        AND q.prompt_version = '*' AND q.source_channel = s.source_channel AND q.target = t.target
), divergence AS (
    SELECT router, model_version, prompt_version, source_channel, '*' AS target_butler,
           sum(CASE WHEN p > 0 THEN 0.5 * p * (log2(p) - log2((p + q) / 2)) ELSE 0 END
               + CASE WHEN q > 0 THEN 0.5 * q * (log2(q) - log2((p + q) / 2)) ELSE 0 END) AS bits, sum(p) > 0 AS any
    FROM grid GROUP BY ALL
), past AS (
    SELECT if(grouping(router) = 1, '*', router) AS router,
           if(grouping(source_channel) = 1, '*', source_channel) AS source_channel, '*' AS target_butler,
           sum(decisions) AS decisions, sum(multi_segment) / nullif(sum(decisions), 0) AS multi_segment_rate
    FROM fact WHERE era = 'past' GROUP BY GROUPING SETS ((), (router), (source_channel)) HAVING count(*) > 0
)
SELECT s.*,
       1 - s.corrected / nullif(s.decisions, 0) AS correctness,
       s.fallbacks / nullif(s.decisions, 0) AS fallback_rate,
       s.multi_segment / nullif(s.decisions, 0) AS multi_segment_rate,
       (s.repeats_same + s.redecided_same) / nullif(s.repeats + s.redecided, 0) AS stability,
       s.failed_dispatches / nullif(s.dispatches, 0) AS dispatch_failure_rate,
       s.partial_failures / s.requests AS partial_failure_rate,
       s.total_failures / s.requests AS total_failure_rate,
       coalesce(past.decisions, 0) AS baseline_decisions,
       CASE WHEN past.decisions > 0 THEN s.multi_segment / nullif(s.decisions, 0) - past.multi_segment_rate END
           AS multi_segment_change,
       CASE WHEN past.decisions > 0 AND d.any THEN d.bits END AS shift
FROM slice AS s
LEFT JOIN divergence AS d USING (router, model_version, prompt_version, source_channel, target_butler)
LEFT JOIN past USING (router, source_channel, target_butler)
