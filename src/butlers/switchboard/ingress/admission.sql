-- name: count_waiting
-- How many messages are open, by the channel they came by.
SELECT source_channel, count(*) AS waiting FROM {schema}.message_inbox
WHERE lifecycle_state IN ('accepted', 'progress')
GROUP BY source_channel;
