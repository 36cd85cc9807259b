-- Where messages went, day by day, from a table `inbox`.
SELECT request_context ->> '$.source_channel' AS source_channel,
       request_context ->> '$.source_endpoint_identity' AS source_endpoint_identity,
       part ->> '$.target_butler' AS target_butler,
       received_at::date AS day,
       count(DISTINCT request_id) AS message_count
FROM (SELECT *, unnest(CASE json_type(dispatch_outcomes) WHEN 'ARRAY' THEN (dispatch_outcomes::json -> '$[*]') END)
          AS part FROM inbox)
WHERE coalesce(json_type(part, '$.skipped'), 'NULL') = 'NULL'
GROUP BY ALL
ORDER BY 1, 2, 3, 4;
