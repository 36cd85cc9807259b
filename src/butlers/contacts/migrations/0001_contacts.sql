-- People and how to reach them; shared by all butlers.

CREATE TABLE {schema}.contacts (
    id                uuid PRIMARY KEY,
    name              text        NOT NULL,
    is_owner          boolean     NOT NULL DEFAULT false,
    preferred_channel text,
    timezone          text,
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL
);

-- There is one owner at most.
CREATE UNIQUE INDEX contacts_owner ON {schema}.contacts (is_owner) WHERE is_owner;

CREATE TABLE {schema}.contact_info (
    id         uuid PRIMARY KEY,
    contact_id uuid        NOT NULL REFERENCES {schema}.contacts (id) ON DELETE CASCADE,
    type       text        NOT NULL,         -- a channel, or a kind of credential
    value      text        NOT NULL,
    label      text,
    is_primary boolean     NOT NULL DEFAULT false,
    secured    boolean     NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL,
    UNIQUE (type, value)
);

CREATE INDEX contact_info_of_contact ON {schema}.contact_info (contact_id, type);
