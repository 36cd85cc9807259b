-- Which process reads an episode, as in every table whose rows are claimed.

ALTER TABLE {schema}.memory_episodes ADD COLUMN claimed_by text;
