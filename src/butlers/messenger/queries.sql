-- name: lock_admission
-- The row that every admission takes, for a caller that has something to write before it reads the state.
SELECT FROM {schema}.rate_buckets WHERE name = 'lock' FOR UPDATE;

-- name: admission_state
-- All that an admission looks at; $1: with the lock, held until the transaction ends. The function says why it is one.
SELECT * FROM {schema}.admission_state($1, $2, $3, $4, $5, $6, $7, $8);

-- name: record_admission
-- The intents become durable before any provider byte is sent, with the attempt of those that are claimed at once; a known
-- key changes nothing. With them: what the buckets hold afterwards, and how requests fared at the door, by the minute.
WITH new AS (
    SELECT * FROM jsonb_to_recordset($1) AS new (
        id uuid, idempotency_key text, request_id uuid, origin_butler text, channel text, identity_scope text,
        intent text, target_identity text, address text, contact_id uuid, ordering_key text, message text, subject text,
        envelope jsonb, source_event jsonb, priority text, rank smallint, not_after timestamptz,
        duplicate_detection boolean, status text, admitted boolean, replay_of uuid, action_id uuid, decisions jsonb,
        tell_owner boolean, attempts integer, claim_token uuid, claimed_by text, lease_expires_at timestamptz,
        attempt_id uuid)
), recorded AS (
    INSERT INTO {schema}.delivery_requests
        (id, idempotency_key, request_id, origin_butler, channel, identity_scope, intent, target_identity, address,
         contact_id, ordering_key, message, subject, envelope, source_event, priority, rank, not_after, duplicate_detection,
         status, admitted, replay_of, action_id, decisions, tell_owner, attempts, claim_token, claimed_by,
         lease_expires_at, next_attempt_at, created_at, updated_at)
    SELECT id, idempotency_key, request_id, origin_butler, channel, identity_scope, intent, target_identity,
           address, contact_id, ordering_key, message, subject, envelope, source_event, priority, rank, not_after,
           duplicate_detection, status, admitted, replay_of, action_id, decisions, tell_owner, attempts, claim_token,
           claimed_by, lease_expires_at, $2, $2, $2
    FROM new
    ON CONFLICT (idempotency_key) DO NOTHING
    RETURNING id
), begun AS (
    INSERT INTO {schema}.delivery_attempts (id, delivery_id, attempt_number, worker, started_at)
    SELECT new.attempt_id, new.id, new.attempts, new.claimed_by, $2
    FROM new JOIN recorded ON recorded.id = new.id
    WHERE new.attempt_id IS NOT NULL
), paid AS (
    INSERT INTO {schema}.rate_buckets
        (name, layer, origin_butler, capacity, refill_per_second, tokens, updated_at, full_at)
    SELECT * FROM unnest($3::text[], $4::text[], $5::text[], $6::float8[], $7::float8[], $8::float8[],
                         $9::timestamptz[], $10::timestamptz[])
    ON CONFLICT (name) DO UPDATE
    SET capacity = excluded.capacity, refill_per_second = excluded.refill_per_second, tokens = excluded.tokens,
        updated_at = excluded.updated_at, full_at = excluded.full_at
), counted AS (
    INSERT INTO {schema}.admission_outcomes (minute, channel, intent, origin_butler, outcome, rule, requests)
    SELECT date_trunc('minute', $2::timestamptz), *
    FROM unnest($11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bigint[])
    ON CONFLICT (minute, channel, intent, origin_butler, outcome, rule)
    DO UPDATE SET requests = {schema}.admission_outcomes.requests + excluded.requests
)
SELECT count(*) FROM recorded;

-- name: request_by_id
-- One delivery with what its provider calls it.
SELECT request.*,
       (SELECT provider_delivery_id FROM {schema}.delivery_receipts AS receipt
        WHERE receipt.delivery_id = request.id AND receipt_type = 'sent' ORDER BY part LIMIT 1) AS provider_delivery_id
FROM {schema}.delivery_requests AS request WHERE id = $1;

-- name: claim_due
-- Due deliveries, the oldest of each conversation only so that nothing overtakes: answers first, then each butler in
-- turn; what it has under way counts, and among equals the turn is that of whoever was served least recently ($7).
-- Only on the channels of this process ($8; NULL: all): the rest is another's, or waits for one.
WITH RECURSIVE origins AS (
    (SELECT origin_butler FROM {schema}.delivery_requests
     WHERE status IN ('pending', 'awaiting_retry') ORDER BY origin_butler LIMIT 1)
    UNION ALL
    SELECT (SELECT request.origin_butler FROM {schema}.delivery_requests AS request
            WHERE request.status IN ('pending', 'awaiting_retry') AND request.origin_butler > origins.origin_butler
            ORDER BY request.origin_butler LIMIT 1)
    FROM origins WHERE origins.origin_butler IS NOT NULL
), ranked AS (
    SELECT candidate.id FROM origins
    CROSS JOIN LATERAL (
        SELECT count(*) AS deliveries FROM {schema}.delivery_requests AS request
        WHERE request.status = 'in_progress' AND request.origin_butler = origins.origin_butler
    ) AS busy
    CROSS JOIN LATERAL (
        SELECT request.id, request.rank, request.intent, row_number() OVER (ORDER BY request.rank, request.next_attempt_at, request.id) AS turn
        FROM {schema}.delivery_requests AS request
        WHERE request.origin_butler = origins.origin_butler AND request.status IN ('pending', 'awaiting_retry')
          AND request.admitted AND request.next_attempt_at <= $1 AND (request.not_after IS NULL OR request.not_after >= $1)
          AND ($8::text[] IS NULL OR request.channel || '.' || request.identity_scope = ANY($8))
          AND CASE WHEN $6::text IS NOT NULL THEN request.channel || '.' || request.identity_scope = $6
              ELSE NOT EXISTS (
                  SELECT 1 FROM {schema}.channel_states AS state
                  WHERE state.name = request.channel || '.' || request.identity_scope AND state.state <> 'closed') END
          AND NOT EXISTS (
              SELECT 1 FROM {schema}.throttles AS throttle
              WHERE throttle.until > $1 AND throttle.scope IN (
                  request.channel || '.' || request.identity_scope,
                  request.channel || '.' || request.identity_scope || ':' || request.target_identity))
          AND NOT EXISTS (
              SELECT 1 FROM {schema}.delivery_requests AS earlier
              WHERE earlier.ordering_key = request.ordering_key AND earlier.id <> request.id
                AND earlier.status IN ('pending', 'in_progress', 'awaiting_retry')
                AND (earlier.id < request.id OR earlier.status = 'in_progress')
              OFFSET 0)  -- by the index for each row: a join would be planned for the empty queue it mostly is
        ORDER BY request.rank, request.next_attempt_at, request.id
        LIMIT $5
    ) AS candidate
    ORDER BY candidate.intent = 'send', busy.deliveries + candidate.turn, candidate.rank,
             array_position($7::text[], origins.origin_butler) NULLS FIRST, candidate.id
    LIMIT $5
), due AS (
    SELECT work.id FROM {schema}.delivery_requests AS work
    WHERE work.id IN (SELECT ranked.id FROM ranked) AND {claimable}
    FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE {schema}.delivery_requests AS work SET {take}
    FROM due WHERE work.id = due.id
    RETURNING work.*
), begun AS (
    INSERT INTO {schema}.delivery_attempts (id, delivery_id, attempt_number, worker, started_at)
    SELECT gen_random_uuid(), claimed.id, claimed.attempts, $3, $1 FROM claimed
    RETURNING id, delivery_id
)
SELECT claimed.*, begun.id AS attempt_id, coalesce(state.generation, 0) AS generation,
       coalesce(state.stance, 'normal') AS stance,
       CASE WHEN claimed.attempts > 1 THEN (
           SELECT jsonb_object_agg(receipt.part, receipt.provider_delivery_id)
           FROM {schema}.delivery_receipts AS receipt
           WHERE receipt.delivery_id = claimed.id AND receipt.receipt_type <> 'bounced') END AS parts_sent,
       claimed.attempts > 1 AND EXISTS (
           SELECT 1 FROM {schema}.delivery_attempts AS attempt
           WHERE attempt.delivery_id = claimed.id AND attempt.certainty = 'uncertain') AS in_doubt
FROM claimed JOIN begun ON begun.delivery_id = claimed.id
LEFT JOIN {schema}.channel_states AS state ON state.name = claimed.channel || '.' || claimed.identity_scope
ORDER BY claimed.rank, claimed.next_attempt_at, claimed.id;

-- name: undo_attempts
-- Attempts that were claimed and not made.
DELETE FROM {schema}.delivery_attempts WHERE id = ANY($1::uuid[]);

-- name: finish_attempts
-- The outcome of attempts: delivery, attempt and receipt together, written only by the holder of each claim. What was
-- said about an earlier doubt says nothing about a new one. Returns the deliveries that were written, and locks and returns
-- the circuits that the results may change: those that are not simply closed, all of them when a result blames one ($3).
-- They are locked behind the deliveries, as everywhere; FOR UPDATE reads a circuit as its last writer has left it.
WITH wanted AS (
    SELECT * FROM jsonb_to_recordset($1) AS ended (
        delivery_id uuid, claim_token uuid, attempt_id uuid, status text, next_attempt_at timestamptz, error_class text,
        error_message text, retryable boolean, terminal boolean, tell_owner boolean, target_identity text,
        decision jsonb, latency_ms integer, outcome text, certainty text, attempt_error_class text,
        attempt_error_message text, attempt_retryable boolean, provider_response jsonb, receipt_id uuid,
        part integer, provider_delivery_id text)
), settled AS (
    UPDATE {schema}.delivery_requests AS work
    SET status = wanted.status, next_attempt_at = coalesce(wanted.next_attempt_at, work.next_attempt_at),
        terminal_error_class = wanted.error_class, terminal_error_message = wanted.error_message,
        terminal_retryable = wanted.retryable, terminal_at = CASE WHEN wanted.terminal THEN $2::timestamptz END,
        tell_owner = wanted.tell_owner, target_identity = coalesce(wanted.target_identity, work.target_identity),
        address = coalesce(wanted.target_identity, work.address),
        decisions = work.decisions || coalesce(wanted.decision, '[]'),
        settled_by = CASE WHEN wanted.certainty = 'uncertain' THEN NULL ELSE work.settled_by END,
        settled_at = CASE WHEN wanted.certainty = 'uncertain' THEN NULL ELSE work.settled_at END,
        {free}, updated_at = $2
    FROM wanted
    WHERE work.id = wanted.delivery_id AND work.claim_token = wanted.claim_token AND {held}
    RETURNING work.id, work.channel || '.' || work.identity_scope AS circuit
), ended AS (
    UPDATE {schema}.delivery_attempts AS attempt
    SET completed_at = $2, latency_ms = wanted.latency_ms, outcome = wanted.outcome, certainty = wanted.certainty,
        error_class = wanted.attempt_error_class, error_message = wanted.attempt_error_message,
        retryable = wanted.attempt_retryable, provider_response = wanted.provider_response
    FROM wanted JOIN settled ON settled.id = wanted.delivery_id
    WHERE attempt.id = wanted.attempt_id
), received AS (
    INSERT INTO {schema}.delivery_receipts (id, delivery_id, part, provider_delivery_id, receipt_type, received_at)
    SELECT wanted.receipt_id, wanted.delivery_id, wanted.part, wanted.provider_delivery_id, 'sent', $2
    FROM wanted JOIN settled ON settled.id = wanted.delivery_id
    WHERE wanted.provider_delivery_id IS NOT NULL
    ON CONFLICT (delivery_id, part, receipt_type)
    DO UPDATE SET provider_delivery_id = excluded.provider_delivery_id, metadata = '{}'
), circuits AS (
    SELECT circuit FROM {schema}.channel_states AS circuit
    WHERE circuit.name = ANY(ARRAY(SELECT settled.circuit FROM settled))
      AND ($3 OR circuit.state <> 'closed' OR circuit.consecutive_failures > 0)
    ORDER BY circuit.name FOR UPDATE
)
SELECT ARRAY(SELECT id FROM settled) AS written, ARRAY(SELECT circuit FROM circuits) AS circuits;

-- name: late_yes
-- The provider's yes came after the claim was taken over: it counts all the same.
WITH told AS (
    UPDATE {schema}.delivery_attempts SET outcome = 'sent', certainty = 'sent', provider_response = $5 WHERE id = $2
), received AS (
    INSERT INTO {schema}.delivery_receipts (id, delivery_id, part, provider_delivery_id, receipt_type, received_at)
    VALUES ($3, $1, $6, $4, 'sent', $7)
    ON CONFLICT (delivery_id, part, receipt_type) DO UPDATE SET provider_delivery_id = excluded.provider_delivery_id
)
UPDATE {schema}.delivery_requests
SET status = 'delivered', terminal_at = $7, updated_at = $7, tell_owner = false, terminal_error_class = NULL,
    terminal_error_message = NULL, terminal_retryable = NULL, settled_by = 'provider', settled_at = $7
WHERE id = $1 AND status IN ('uncertain', 'awaiting_retry')
RETURNING id;

-- name: record_part
-- A part of a longer message came through; the next attempt goes on behind it.
INSERT INTO {schema}.delivery_receipts (id, delivery_id, part, provider_delivery_id, receipt_type, received_at)
VALUES ($1, $2, $3, $4, 'sent', $5)
ON CONFLICT (delivery_id, part, receipt_type)
DO UPDATE SET provider_delivery_id = excluded.provider_delivery_id, metadata = '{}';

-- name: parts_of
-- The parts that are certainly out.
SELECT part FROM {schema}.delivery_receipts WHERE delivery_id = $1 AND receipt_type = 'sent';

-- name: bury
-- Deliveries that used up their attempts, with all that is needed to judge and to replay them.
INSERT INTO {schema}.delivery_dead_letter
    (id, delivery_id, request_id, origin_butler, channel, intent, target_identity, quarantine_reason, error_class,
     error_summary, total_attempts, first_attempt_at, last_attempt_at, original_envelope, all_attempt_outcomes,
     replay_eligible, created_at)
SELECT gen_random_uuid(), request.id, request.request_id, request.origin_butler, request.channel, request.intent,
       request.target_identity, $2, coalesce(request.terminal_error_class, 'internal_error'),
       coalesce(request.terminal_error_message, ''), request.attempts, tried.first_at, tried.last_at, request.envelope,
       coalesce(tried.outcomes, '[]'), true, $3
FROM {schema}.delivery_requests AS request
CROSS JOIN LATERAL (
    SELECT min(attempt.started_at) AS first_at, max(attempt.started_at) AS last_at,
           jsonb_agg(jsonb_build_object(
               'attempt_number', attempt.attempt_number, 'started_at', attempt.started_at, 'outcome', attempt.outcome,
               'certainty', attempt.certainty, 'error_class', attempt.error_class,
               'error_message', attempt.error_message, 'latency_ms', attempt.latency_ms)
               ORDER BY attempt.attempt_number) AS outcomes
    FROM {schema}.delivery_attempts AS attempt WHERE attempt.delivery_id = request.id
) AS tried
WHERE request.id = ANY($1::uuid[])
ON CONFLICT (delivery_id) DO NOTHING;

-- name: lock_channels
-- Circuits that are about to change.
SELECT * FROM {schema}.channel_states WHERE name = ANY($1::text[]) ORDER BY name FOR UPDATE;

-- name: ensure_channels
-- A row for each channel that is served.
INSERT INTO {schema}.channel_states (name, updated_at)
SELECT name, $2 FROM unnest($1::text[]) AS name
ON CONFLICT (name) DO NOTHING;

-- name: open_circuits
-- Channels that may only be probed.
SELECT name FROM {schema}.channel_states WHERE state <> 'closed' ORDER BY name;

-- name: circuits_of
-- How the channels served here are.
SELECT name, state, trip_reason, probe_at FROM {schema}.channel_states WHERE name = ANY($1::text[]) ORDER BY name;

-- name: write_circuit
-- A circuit after a probe went out or a result came in.
UPDATE {schema}.channel_states
SET state = $2, generation = $3, consecutive_failures = $4, probes_out = $5, probe_successes = $6, trip_reason = $7,
    tripped_at = $8, probe_at = $9, updated_at = $10
WHERE name = $1;

-- name: open_throttle
-- A provider asked to wait; a longer window that is open already stays.
INSERT INTO {schema}.throttles (scope, channel, until, reason, created_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (scope) DO UPDATE
SET until = greatest(throttles.until, excluded.until), reason = excluded.reason, created_at = excluded.created_at;

-- name: other_throttles
-- Open windows of other conversations on the same channel.
SELECT count(*) FROM {schema}.throttles WHERE channel = $1 AND scope <> $2 AND scope <> $1 AND until > $3;

-- name: record_recipient_rule
-- What a provider said about a recipient.
INSERT INTO {schema}.recipient_rules (channel, target, rule, moved_to, reason, decided_by, since)
VALUES ($1, $2, $3, $4, $5, 'provider', $6)
ON CONFLICT (channel, target) DO UPDATE
SET rule = excluded.rule, moved_to = excluded.moved_to, reason = excluded.reason, decided_by = excluded.decided_by,
    since = excluded.since;

-- name: claim_abandoned
-- Deliveries whose worker died while it held them, with the attempt that has no outcome.
WITH lost AS (
    SELECT id FROM {schema}.delivery_requests AS work
    WHERE {held} AND id <> ALL($6::uuid[])
      AND (claimed_by = ANY($7::text[]) OR (lease_expires_at <= $1 AND claimed_by <> ALL($8::text[])))
    ORDER BY lease_expires_at
    LIMIT $5
    FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE {schema}.delivery_requests AS work SET {take_over}
    FROM lost WHERE work.id = lost.id
    RETURNING work.*
)
SELECT taken.*, attempt.id AS attempt_id, attempt.worker AS attempt_worker,
       coalesce((SELECT state.generation FROM {schema}.channel_states AS state
                 WHERE state.name = taken.channel || '.' || taken.identity_scope), 0) AS generation, 'normal' AS stance,
       NULL::jsonb AS parts_sent,
       EXISTS (SELECT 1 FROM {schema}.delivery_attempts AS doubt
               WHERE doubt.delivery_id = taken.id AND doubt.certainty = 'uncertain') AS in_doubt
FROM taken LEFT JOIN {schema}.delivery_attempts AS attempt
     ON attempt.delivery_id = taken.id AND attempt.attempt_number = taken.attempts AND attempt.completed_at IS NULL
ORDER BY taken.id;

-- name: next_due
-- When there is something to send or to rescue next, and whether anything due is held up at present, on the channels of
-- this process ($2; NULL: all). What nobody could claim then is left out: channels in trouble have a timer of their own.
SELECT EXISTS (SELECT 1 FROM {schema}.delivery_requests AS late
               WHERE late.status IN ('pending', 'awaiting_retry') AND late.next_attempt_at <= $1
                 AND ($2::text[] IS NULL OR late.channel || '.' || late.identity_scope = ANY($2))) AS held_up,
       min(moment) AS moment FROM (
    SELECT min(greatest(candidate.next_attempt_at, everybody.until, recipient.until)) AS moment
    FROM {schema}.delivery_requests AS candidate
    LEFT JOIN {schema}.throttles AS everybody
        ON everybody.until > $1 AND everybody.scope = candidate.channel || '.' || candidate.identity_scope
    LEFT JOIN {schema}.throttles AS recipient
        ON recipient.until > $1
       AND recipient.scope = candidate.channel || '.' || candidate.identity_scope || ':' || candidate.target_identity
    WHERE candidate.status IN ('pending', 'awaiting_retry') AND candidate.admitted
      AND ($2::text[] IS NULL OR candidate.channel || '.' || candidate.identity_scope = ANY($2))
      AND NOT EXISTS (
          SELECT 1 FROM {schema}.channel_states AS state
          WHERE state.name = candidate.channel || '.' || candidate.identity_scope AND state.state <> 'closed')
      AND NOT EXISTS (
          SELECT 1 FROM {schema}.delivery_requests AS earlier
          WHERE earlier.ordering_key = candidate.ordering_key AND earlier.id <> candidate.id
            AND earlier.status IN ('pending', 'in_progress', 'awaiting_retry')
            AND (earlier.id < candidate.id OR earlier.status = 'in_progress')
          OFFSET 0)
    UNION ALL
    SELECT min(lease_expires_at) FROM {schema}.delivery_requests WHERE status = 'in_progress'
) AS moments;

-- name: expire
-- What was not sent in time will not be sent, and nothing stale goes out; what may have arrived waits for a word.
WITH late AS (
    SELECT request.id,
           request.settled_at IS NULL AND EXISTS (
               SELECT 1 FROM {schema}.delivery_attempts AS attempt
               WHERE attempt.delivery_id = request.id AND attempt.certainty = 'uncertain') AS in_doubt,
           (SELECT string_agg(receipt.part::text, ', ' ORDER BY receipt.part) FROM {schema}.delivery_receipts AS receipt
            WHERE receipt.delivery_id = request.id AND receipt.receipt_type = 'sent') AS parts
    FROM {schema}.delivery_requests AS request
    WHERE request.not_after < $1 AND request.terminal_at IS NULL
      AND request.status IN ('pending', 'awaiting_retry', 'pending_approval', 'pending_missing_identifier')
    FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.delivery_requests AS request
SET status = CASE WHEN late.in_doubt THEN 'uncertain' ELSE 'expired' END, terminal_at = $1, updated_at = $1,
    tell_owner = late.in_doubt, terminal_error_class = 'timeout', terminal_retryable = false,
    terminal_error_message = CASE
        WHEN late.in_doubt THEN 'the message may or may not have been sent, and it was too late to send it again'
        WHEN late.parts IS NOT NULL THEN 'it was too late to send the rest; already sent: part ' || late.parts
        ELSE 'it was too late to send it' END,
    decisions = request.decisions || jsonb_build_object(
        'at', $1::timestamptz, 'rule', 'expiry', 'detail', 'not_after passed',
        'verdict', CASE WHEN late.in_doubt THEN 'uncertain' ELSE 'expired' END)
FROM late WHERE request.id = late.id
RETURNING request.id, request.channel, request.identity_scope, request.intent, request.origin_butler, request.status;

-- name: open_attempts_of
-- Does any attempt of a worker still wait for its evidence?
SELECT count(*) FROM {schema}.delivery_attempts WHERE worker = $1 AND completed_at IS NULL;

-- name: deliveries_of_request
-- All deliveries of one request, oldest first.
SELECT id, origin_butler, channel, intent, target_identity, status, attempts, idempotency_key, terminal_error_class,
       terminal_error_message, created_at, terminal_at
FROM {schema}.delivery_requests WHERE request_id = $1 ORDER BY id;

-- name: attempts_of_deliveries
-- All attempts of some deliveries, in order.
SELECT delivery_id, attempt_number, started_at, completed_at, latency_ms, outcome, certainty, error_class,
       error_message, retryable
FROM {schema}.delivery_attempts WHERE delivery_id = ANY($1::uuid[]) ORDER BY delivery_id, attempt_number;

-- name: receipts_of_deliveries
-- All receipts of some deliveries, in order.
SELECT delivery_id, part, provider_delivery_id, receipt_type, received_at
FROM {schema}.delivery_receipts WHERE delivery_id = ANY($1::uuid[]) ORDER BY delivery_id, part;

-- name: changed_deliveries
-- What changed since a place, up to the horizon below which nothing can appear any more; $1 NULL: only the horizon.
SELECT horizon.number AS horizon, changed.*
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS number) AS horizon
LEFT JOIN LATERAL (
    SELECT changed_in, id, request_id, origin_butler, channel, intent, status, attempts, created_at, updated_at,
           terminal_error_class
    FROM {schema}.delivery_requests
    WHERE changed_in >= $1::bigint AND changed_in < horizon.number
    ORDER BY changed_in, id
    LIMIT $2
) AS changed ON true;
