-- All that an admission looks at, in one statement: known keys, budgets, shares, throttles, circuits, recipients.
--
-- With `locks`, the caller first takes the row that every admission takes, so budgets and keys are decided by one process
-- at a time. The function is VOLATILE and the transaction READ COMMITTED, so each of its statements has a snapshot of its
-- own: the state is read after the lock was granted, and shows what the holder before has committed. Plain SQL that locks
-- and reads in one statement would read the snapshot from before the wait.
--
-- What has ended stays in the indexes of what is under way until a vacuum: a plain index scan marks it and passes it by the
-- next time, a bitmap scan would walk through all of it at every admission. And whatever an admission asks for has a key: a
-- planner that finds a table small enough to be read as a whole is right only until it has grown.

CREATE FUNCTION {schema}.admission_state(
    locks boolean,
    keys text[],                -- idempotency keys
    bucket_names text[],        -- buckets, and layers whose shares are read
    scopes text[],              -- of throttles and circuits: telegram.bot, telegram.bot:7
    recipient_channels text[],  -- side by side with recipient_targets
    recipient_targets text[],
    ordering_keys text[],
    moment timestamptz
) RETURNS TABLE (
    in_flight bigint,
    known text[],               -- 'key id'
    buckets {schema}.rate_buckets[],
    busy text[],                -- ordering keys with a delivery under way
    throttles {schema}.throttles[],
    channels {schema}.channel_states[],
    recipients {schema}.recipient_rules[]
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true);
    IF locks THEN
        PERFORM 1 FROM {schema}.rate_buckets WHERE name = 'lock' FOR UPDATE;
    END IF;
    RETURN QUERY SELECT
        (SELECT count(*) FROM {schema}.delivery_requests AS request
         WHERE request.status IN ('pending', 'in_progress') AND request.admitted),
        ARRAY(SELECT request.idempotency_key || ' ' || request.id FROM {schema}.delivery_requests AS request
              WHERE request.idempotency_key = ANY($2)),
        -- Two look-ups, not one with OR, which would read every bucket there is.
        ARRAY(SELECT bucket FROM {schema}.rate_buckets AS bucket WHERE bucket.name = ANY($3)
              UNION ALL
              SELECT share FROM {schema}.rate_buckets AS share WHERE share.layer = ANY($3) AND share.full_at > $8),
        ARRAY(SELECT DISTINCT request.ordering_key FROM {schema}.delivery_requests AS request
              WHERE request.ordering_key = ANY($7)
                AND request.status IN ('pending', 'in_progress', 'awaiting_retry')),
        ARRAY(SELECT throttle FROM {schema}.throttles AS throttle
              WHERE throttle.scope = ANY($4) AND throttle.until > $8),
        ARRAY(SELECT circuit FROM {schema}.channel_states AS circuit WHERE circuit.name = ANY($4)),
        ARRAY(SELECT recipient FROM {schema}.recipient_rules AS recipient
              WHERE (recipient.channel, recipient.target) IN (SELECT * FROM unnest($5, $6)));
END $$;
