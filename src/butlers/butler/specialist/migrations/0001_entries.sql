-- What a specialist was told and what it answered, once per routed segment.

CREATE TABLE {schema}.entries (
    id             uuid PRIMARY KEY,
    request_id     uuid        NOT NULL,
    segment_id     text        NOT NULL,
    kind           text        NOT NULL CHECK (kind IN ('note', 'question')),
    text           text        NOT NULL,
    sender         text        NOT NULL,
    source_channel text        NOT NULL,
    answer         text,                     -- written before it is sent, so that a repeated run says the same
    created_at     timestamptz NOT NULL,
    UNIQUE (request_id, segment_id)
);

CREATE INDEX entries_recent ON {schema}.entries (created_at DESC);
CREATE INDEX entries_words ON {schema}.entries USING gin (to_tsvector('simple', text)) WHERE kind = 'note';
