-- The bot, mailbox or client that a message came by: what was learned from it belongs to the sender there.

ALTER TABLE {schema}.extraction_queue ADD COLUMN source_endpoint text;
