-- Requests whose attempts never ended are dead letters of their own kind, with the reason.

ALTER TABLE {schema}.message_inbox ADD COLUMN last_failure text;    -- why the last attempt did not end; NULL: it died

ALTER TABLE {schema}.dead_letter DROP CONSTRAINT dead_letter_failure_category_check;
ALTER TABLE {schema}.dead_letter ADD CONSTRAINT dead_letter_failure_category_check CHECK (failure_category IN
    ('retries_exhausted', 'non_retryable', 'budget_exhausted', 'classification', 'quarantined'));
