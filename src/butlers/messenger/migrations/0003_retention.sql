-- Deliveries are removed when they are old, and PostgreSQL then looks for dead letters that name them as a replay.

CREATE INDEX delivery_dead_letter_replays ON {schema}.delivery_dead_letter (last_replay_id)
    WHERE last_replay_id IS NOT NULL;
