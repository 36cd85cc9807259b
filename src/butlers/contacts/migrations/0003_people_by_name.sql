-- People are named in commands by what they are called, and written to in their language.

ALTER TABLE {schema}.contacts ADD COLUMN locale text;  -- like de or pt-BR; absent: unknown

CREATE INDEX contacts_by_name ON {schema}.contacts (lower(name));
