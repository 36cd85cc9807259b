-- The message by which the owner approved a code: when a crash swallowed its answer, it comes again and gets the same one.

ALTER TABLE {schema}.sender_pairings ADD COLUMN used_event text;
