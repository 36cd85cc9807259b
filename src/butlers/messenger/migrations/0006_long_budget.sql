-- What is too much to count every few seconds: each channel's good and bad events over hours and days, written from
-- outside (by the pipeline, where there is one) and read by the judge. And why a channel is used as it is.

CREATE TABLE {schema}.long_budget (
    name     text        NOT NULL,                  -- telegram.bot
    window_s bigint      NOT NULL,
    good     bigint      NOT NULL,
    bad      bigint      NOT NULL,
    as_of    timestamptz NOT NULL,                  -- the window's end; what is old says nothing
    PRIMARY KEY (name, window_s)
);

ALTER TABLE {schema}.channel_states ADD COLUMN stance_reason text;  -- why the stance was taken, or is kept
