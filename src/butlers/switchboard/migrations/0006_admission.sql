-- How much waits, by channel: counted often, so it stands in a column and in an index of the open messages alone.

ALTER TABLE {schema}.message_inbox ADD COLUMN source_channel text NOT NULL DEFAULT '';

UPDATE {schema}.message_inbox SET source_channel = request_context ->> 'source_channel';

CREATE INDEX message_inbox_waiting ON {schema}.message_inbox (source_channel, received_at)
    WHERE lifecycle_state IN ('accepted', 'progress');
