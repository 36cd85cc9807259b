-- A butler that an operator took out of service: no sign of life puts it back.

ALTER TABLE {schema}.butler_registry ADD COLUMN held jsonb;  -- operator, reason, at

CREATE INDEX butler_eligibility_log_of_butler ON {schema}.butler_eligibility_log (butler, observed_at DESC, id DESC);
