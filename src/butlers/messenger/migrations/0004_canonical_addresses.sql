-- An address has one spelling in all that is remembered about it; how it was given stands beside it. And the action
-- that holds a delivery leads to it.

ALTER TABLE {schema}.delivery_requests ADD COLUMN address text;  -- the target as it was given

CREATE INDEX delivery_requests_of_action ON {schema}.delivery_requests (action_id) WHERE action_id IS NOT NULL;

-- What waits keeps its place in its conversation.
UPDATE {schema}.delivery_requests
SET address = target_identity,
    target_identity = lower(btrim(target_identity)),
    ordering_key = CASE WHEN starts_with(ordering_key, channel || ':' || target_identity)
                        THEN channel || ':' || lower(btrim(target_identity))
                             || substr(ordering_key, length(channel || ':' || target_identity) + 1)
                        ELSE ordering_key END
WHERE channel IN ('email', 'telegram') AND target_identity <> lower(btrim(target_identity));

-- Of two spellings with rules of their own, the one that holds back stays, else the latest.
WITH misspelled AS (
    DELETE FROM {schema}.recipient_rules
    WHERE channel IN ('email', 'telegram') AND target <> lower(btrim(target))
    RETURNING *
)
INSERT INTO {schema}.recipient_rules AS known (channel, target, rule, moved_to, reason, decided_by, since)
SELECT DISTINCT ON (channel, lower(btrim(target)))
       channel, lower(btrim(target)), rule, moved_to, reason, decided_by, since
FROM misspelled
ORDER BY channel, lower(btrim(target)), rule = 'suppressed' DESC, since DESC
ON CONFLICT (channel, target) DO UPDATE
SET rule = excluded.rule, moved_to = excluded.moved_to, reason = excluded.reason, decided_by = excluded.decided_by,
    since = excluded.since
WHERE (excluded.rule = 'suppressed', excluded.since) > (known.rule = 'suppressed', known.since);
