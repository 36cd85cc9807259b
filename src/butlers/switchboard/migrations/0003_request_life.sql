-- Threads keep their order, decisions their versions, and what people decided about a request stays with it.

ALTER TABLE {schema}.message_inbox
    ADD COLUMN thread_key text,                     -- messages of one thread are worked on one after the other
    ADD COLUMN override   jsonb;                    -- what an operator decided: action, operator, reason, at

-- The oldest open message of a thread, and the last decision in it.
CREATE INDEX message_inbox_thread_open ON {schema}.message_inbox (thread_key, received_at, request_id)
    WHERE thread_key IS NOT NULL AND lifecycle_state IN ('accepted', 'progress');
CREATE INDEX message_inbox_thread ON {schema}.message_inbox (thread_key, received_at DESC)
    WHERE thread_key IS NOT NULL;
