-- Threads keep their order, decisions their versions, and what people decided about a request stays with it.

ALTER TABLE {schema}.message_inbox
    ADD COLUMN thread_key     text,                 -- messages of one thread are worked on one after the other
    ADD COLUMN waiting_for    jsonb,                -- put off: the butlers that could not be reached
    ADD COLUMN override       jsonb,                -- what an operator decided: action, operator, reason, at
    ADD COLUMN calls          integer NOT NULL DEFAULT 0,  -- of butlers and models, before it was last put off
    ADD COLUMN signal_pending boolean NOT NULL DEFAULT false;  -- its author has not been shown the end yet

-- The oldest open message of a thread, and the last decision in it.
CREATE INDEX message_inbox_thread_open ON {schema}.message_inbox (thread_key, received_at, request_id)
    WHERE thread_key IS NOT NULL AND lifecycle_state IN ('accepted', 'progress');
CREATE INDEX message_inbox_thread ON {schema}.message_inbox (thread_key, received_at DESC)
    WHERE thread_key IS NOT NULL;
CREATE INDEX message_inbox_signals ON {schema}.message_inbox (final_state_at) WHERE signal_pending;
