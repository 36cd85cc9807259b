-- Who is writing is looked up at every message; mail addresses are the same however they are spelled.

CREATE INDEX contact_info_identity ON {schema}.contact_info (type, lower(value)) WHERE NOT secured;
