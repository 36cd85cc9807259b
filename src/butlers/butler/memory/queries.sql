-- name: store_episode
-- Remember what happened; a session's second episode is the first one.
INSERT INTO {schema}.memory_episodes
    (id, session_id, request_id, source, speaker, content, answer, importance, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (session_id) DO NOTHING
RETURNING id;

-- name: next_attempts
-- How often the episodes that are read next were tried before: the least tried come first, each once per run.
SELECT attempts FROM {schema}.memory_episodes AS work
WHERE {claimable} AND attempts < $2 AND (claimed_at IS NULL OR claimed_at < $3)
ORDER BY attempts, created_at
LIMIT 1;

-- name: claim_episodes
-- Take episodes that nobody holds, oldest first; rows that another process is claiming are passed over.
UPDATE {schema}.memory_episodes AS work SET {take}
WHERE id IN (
    SELECT id FROM {schema}.memory_episodes AS work
    WHERE {claimable} AND attempts = $5 AND (claimed_at IS NULL OR claimed_at < $6)
    ORDER BY created_at, id
    LIMIT $7
    FOR UPDATE SKIP LOCKED)
RETURNING id, speaker, content, answer, created_at, attempts;

-- name: remove_expired
-- Forget a batch of what is past its time: read or given up, or unread and not important, or simply too old. What
-- somebody is reading right now stays.
DELETE FROM {schema}.memory_episodes WHERE id IN (
    SELECT id FROM {schema}.memory_episodes
    WHERE expires_at <= $1
      AND (consolidation_status IN ('consolidated', 'dead') OR importance < $2 OR created_at <= $3)
      AND NOT (consolidation_status = 'processing' AND lease_expires_at > $1)
    ORDER BY expires_at
    LIMIT $4
    FOR UPDATE SKIP LOCKED)
RETURNING id;

-- name: count_overdue
-- Episodes past their time that are still kept.
SELECT count(*) FROM {schema}.memory_episodes WHERE expires_at <= $1;

-- name: remove_corrections
-- Corrections that nobody repeated.
DELETE FROM {schema}.memory_corrections WHERE seen_at <= $1;

-- name: get_episode
-- One episode.
SELECT id, session_id, request_id, source, speaker, content, answer, importance, consolidation_status, attempts,
       last_error, created_at, expires_at, consolidated_at
FROM {schema}.memory_episodes WHERE id = $1;

-- name: forget_episode
-- Forget one episode.
DELETE FROM {schema}.memory_episodes WHERE id = $1 RETURNING id;

-- name: lock_facts
-- Facts are written one at a time, so that two writers cannot both find nothing to supersede.
SELECT pg_advisory_xact_lock(hashtextextended('{schema}.memory_facts', 0));

-- name: active_fact
-- What is held true about a subject in one respect.
SELECT id, content_key, confidence, permanence, observed_at FROM {schema}.memory_facts
WHERE subject_key = $1 AND predicate_key = $2 AND superseded_at IS NULL;

-- name: insert_fact
-- Hold something true.
INSERT INTO {schema}.memory_facts
    (id, subject, predicate, content, subject_key, predicate_key, content_key, permanence, decay_rate, confidence,
     origin, source_episode_id, observed_at, confirmed_at, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $13, $14);

-- name: supersede_fact
-- A newer fact takes its place; it stays readable as history.
UPDATE {schema}.memory_facts SET superseded_by = $2, superseded_at = $3 WHERE id = $1;

-- name: repeat_fact
-- The same was said again: it counts as fresh, and as sure as the surer of the two.
UPDATE {schema}.memory_facts
SET confidence = greatest(confidence, $2), permanence = $3, decay_rate = $4, observed_at = greatest(observed_at, $5),
    confirmed_at = greatest(confirmed_at, $5), confirmations = confirmations + 1
WHERE id = $1;

-- name: confirm_fact
-- Somebody says that it is still so: its decay starts anew.
UPDATE {schema}.memory_facts
SET confirmed_at = greatest(confirmed_at, $2), confirmations = confirmations + 1
WHERE id = $1 AND superseded_at IS NULL
RETURNING id;

-- name: get_fact
-- One fact.
SELECT id, subject, predicate, content, subject_key, predicate_key, permanence, decay_rate, confidence, origin,
       source_episode_id, observed_at, confirmed_at, confirmations, created_at, superseded_by, superseded_at
FROM {schema}.memory_facts WHERE id = $1;

-- name: history_of_fact
-- Other versions of the same fact, newest first.
SELECT id, content, confidence, observed_at, superseded_by, superseded_at FROM {schema}.memory_facts
WHERE subject_key = $1 AND predicate_key = $2 AND id <> $3
ORDER BY id DESC
LIMIT $4;

-- name: forget_fact
-- Forget a fact with all its versions: nobody who asks for it to be forgotten means only the newest.
DELETE FROM {schema}.memory_facts AS fact USING {schema}.memory_facts AS named
WHERE named.id = $1 AND fact.subject_key = named.subject_key AND fact.predicate_key = named.predicate_key
RETURNING fact.id;

-- name: store_rule
-- A rule, new or said again; saying it again is a sign that it helps.
INSERT INTO {schema}.memory_rules AS rule
    (id, content, rule_key, maturity, helpful_count, harmful_count, origin, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8)
ON CONFLICT (rule_key) DO UPDATE SET helpful_count = rule.helpful_count + 1, updated_at = excluded.updated_at
RETURNING id, maturity, helpful_count, harmful_count;

-- name: use_rule
-- A rule was followed, and it helped or did harm.
UPDATE {schema}.memory_rules
SET helpful_count = helpful_count + $2, harmful_count = harmful_count + $3, updated_at = $4
WHERE id = $1
RETURNING id, maturity, helpful_count, harmful_count;

-- name: set_maturity
-- What the rule has become.
UPDATE {schema}.memory_rules SET maturity = $2 WHERE id = $1;

-- name: get_rule
-- One rule.
SELECT id, content, maturity, helpful_count, harmful_count, origin, created_at, updated_at
FROM {schema}.memory_rules WHERE id = $1;

-- name: forget_rule
-- Forget one rule, and what led to it.
WITH gone AS (
    DELETE FROM {schema}.memory_rules WHERE id = $1 RETURNING id, rule_key
), evidence AS (
    DELETE FROM {schema}.memory_corrections USING gone WHERE memory_corrections.rule_key = gone.rule_key
)
SELECT id FROM gone;

-- name: note_correction
-- An episode corrected the butler; true when another episode said the same before.
WITH noted AS (
    INSERT INTO {schema}.memory_corrections (rule_key, episode_id, seen_at) VALUES ($1, $2, $3)
    ON CONFLICT DO NOTHING
    RETURNING rule_key
)
SELECT EXISTS (SELECT 1 FROM noted)
   AND EXISTS (SELECT 1 FROM {schema}.memory_corrections WHERE rule_key = $1 AND episode_id <> $2);

-- name: recall_facts
-- Facts that share words with a question; those that share more come first.
SELECT fact.id, fact.subject, fact.predicate, fact.content, fact.permanence, fact.decay_rate, fact.confidence,
       fact.origin, fact.confirmed_at AS since, count(*) AS matched
FROM {schema}.memory_facts AS fact
CROSS JOIN unnest($1::text[]) AS term
WHERE fact.superseded_at IS NULL AND fact.search @@ to_tsquery('english', $2)
  AND fact.search @@ to_tsquery('english', term)
GROUP BY fact.id
ORDER BY count(*) DESC, fact.confirmed_at DESC
LIMIT $3;

-- name: recall_episodes
-- Episodes that share words with a question and are not past their time.
SELECT episode.id, episode.speaker, episode.content, episode.answer, episode.importance, episode.source,
       episode.created_at AS since, count(*) AS matched
FROM {schema}.memory_episodes AS episode
CROSS JOIN unnest($1::text[]) AS term
WHERE episode.expires_at > $4 AND episode.search @@ to_tsquery('english', $2)
  AND episode.search @@ to_tsquery('english', term)
GROUP BY episode.id
ORDER BY count(*) DESC, episode.created_at DESC
LIMIT $3;

-- name: recall_rules
-- Rules that share words with a question.
SELECT rule.id, rule.content, rule.maturity, rule.helpful_count, rule.harmful_count, rule.origin,
       rule.updated_at AS since, count(*) AS matched
FROM {schema}.memory_rules AS rule
CROSS JOIN unnest($1::text[]) AS term
WHERE rule.search @@ to_tsquery('english', $2) AND rule.search @@ to_tsquery('english', term)
GROUP BY rule.id
ORDER BY count(*) DESC, rule.updated_at DESC
LIMIT $3;

-- name: meaningful_terms
-- The terms that can find anything: the language's filler words cannot.
SELECT term FROM unnest($1::text[]) AS term WHERE numnode(to_tsquery('english', term)) > 0;

-- name: count_episodes
-- Episodes by what became of them.
SELECT consolidation_status AS name, count(*) AS count, min(created_at) AS oldest
FROM {schema}.memory_episodes GROUP BY consolidation_status;

-- name: count_facts
-- Facts held true, by permanence; superseded ones apart.
SELECT CASE WHEN superseded_at IS NULL THEN permanence ELSE 'superseded' END AS name, count(*) AS count
FROM {schema}.memory_facts GROUP BY 1;

-- name: count_rules
-- Rules by maturity.
SELECT maturity AS name, count(*) AS count FROM {schema}.memory_rules GROUP BY maturity;
