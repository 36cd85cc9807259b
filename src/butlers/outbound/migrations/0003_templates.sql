-- Templates of messages. A change is a new version, and no version changes: what was queued with one is rendered with it.

CREATE TABLE {schema}.templates (
    id         text        NOT NULL,
    version    integer     NOT NULL CHECK (version > 0),      -- 1, 2, ... of this id
    document   jsonb       NOT NULL,                          -- variables, locales, default_locale; tags in one spelling
    created_by text        NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (id, version)
);
