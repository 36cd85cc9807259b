-- Balanced books: what was looked at by each rule, and every breach. Ids only, nothing that anybody wrote.

CREATE TABLE {schema}.books (
    date     date   NOT NULL,                       -- on which the things that were looked at began, in UTC
    rule     text   NOT NULL,
    severity text   NOT NULL CHECK (severity IN ('error', 'notice')),
    checked  bigint NOT NULL,
    broken   bigint NOT NULL,
    young    bigint NOT NULL,                       -- moved within the grace period: judged by a later run
    run_id   uuid   NOT NULL,                       -- the last that looked
    PRIMARY KEY (date, rule)
);

CREATE TABLE {schema}.books_findings (
    date     date NOT NULL,
    rule     text NOT NULL,
    key      text NOT NULL,                         -- of a request, delivery, attempt, receipt or line; or event and day
    severity text NOT NULL CHECK (severity IN ('error', 'notice')),
    detail   text NOT NULL,                         -- further ids, names of states, counts
    run_id   uuid NOT NULL,
    PRIMARY KEY (date, rule, key)
);
