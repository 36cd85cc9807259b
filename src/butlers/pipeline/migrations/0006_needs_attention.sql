-- A run that went well and found something wrong "needs attention"; it was "dissatisfied" before.
ALTER TABLE {schema}.pipeline_runs DROP CONSTRAINT pipeline_runs_outcome_check;
UPDATE {schema}.pipeline_runs SET outcome = 'needs_attention' WHERE outcome = 'dissatisfied';
ALTER TABLE {schema}.pipeline_runs ADD CONSTRAINT pipeline_runs_outcome_check
    CHECK (outcome IN ('running', 'succeeded', 'needs_attention', 'failed', 'died'));
