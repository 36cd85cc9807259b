-- Mail whose handling was begun and has not ended well: counted before the work begins, quarantined after three attempts.

CREATE TABLE {schema}.mail_attempts (
    mailbox        text        NOT NULL,            -- address:folder
    uidvalidity    bigint      NOT NULL,
    uid            bigint      NOT NULL,
    attempts       integer     NOT NULL,
    reason         text        NOT NULL,            -- why the last attempt did not end well
    size_bytes     bigint      NOT NULL,
    arrived_at     timestamptz,
    quarantined_at timestamptz,                     -- NULL: it is tried again
    updated_at     timestamptz NOT NULL,
    PRIMARY KEY (mailbox, uidvalidity, uid)
);

CREATE INDEX mail_attempts_quarantined ON {schema}.mail_attempts (quarantined_at DESC, uidvalidity DESC, uid DESC)
    WHERE quarantined_at IS NOT NULL;
