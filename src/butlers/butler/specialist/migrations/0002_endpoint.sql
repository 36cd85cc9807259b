-- The bot, mailbox or client that a message came by. The same sender's name at another one is somebody else.
-- NULL: kept before this was recorded.

ALTER TABLE {schema}.entries ADD COLUMN source_endpoint text;
