-- name: keep
-- Remember what was said, once per segment; returns the answer that an earlier run gave.
INSERT INTO {schema}.entries
    (id, request_id, segment_id, kind, text, sender, source_channel, source_endpoint, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (request_id, segment_id) DO UPDATE SET segment_id = excluded.segment_id
RETURNING answer;

-- name: record_answer
-- The first answer stands: a repeated run must not say something else.
UPDATE {schema}.entries SET answer = coalesce(answer, $3) WHERE request_id = $1 AND segment_id = $2 RETURNING answer;

-- name: recall
-- Notes of one sender at one endpoint of a channel that share words with a question; those that share more words come
-- first.
SELECT text, created_at
FROM {schema}.entries
WHERE kind = 'note' AND source_channel = $1 AND sender = $3 AND (source_endpoint = $2 OR source_endpoint IS NULL)
  AND to_tsvector('simple', text) @@ to_tsquery('simple', $4)
ORDER BY ts_rank(to_tsvector('simple', text), to_tsquery('simple', $4)) DESC, created_at DESC
LIMIT $5;

-- name: entries_of_request
-- For tracing.
SELECT id, segment_id, kind, created_at FROM {schema}.entries WHERE request_id = $1 ORDER BY created_at;
