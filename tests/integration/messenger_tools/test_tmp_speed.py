import time
async def test_speed(world):
    db=world.database
    await db.execute("""insert into messenger.delivery_requests (id, idempotency_key, origin_butler, channel, intent, target_identity, ordering_key, message, envelope, status, attempts, next_attempt_at, created_at, updated_at, terminal_at, request_id)
      select gen_random_uuid(), 'k'||n, 'health', 'telegram', 'send', (n%1000)::text, (n%1000)::text, 'm', '{}', case when n%50=0 then 'dead_lettered' else 'delivered' end, 1, t, t, t, t + interval '50 ms', gen_random_uuid() from (select n, timestamptz '2026-03-01 11:59:59Z' - n*interval '0.3 s' as t from generate_series(1,200000) n) x""")
    await db.execute("insert into messenger.delivery_attempts (id, delivery_id, attempt_number, worker, started_at, completed_at, latency_ms, outcome, certainty) select gen_random_uuid(), id, 1, 'w', created_at, terminal_at, 40, 'sent', case when status='delivered' then 'sent' else 'not_sent' end from messenger.delivery_requests")
    await db.execute("insert into messenger.delivery_dead_letter (id, delivery_id, origin_butler, channel, intent, quarantine_reason, error_class, error_summary, total_attempts, original_envelope, all_attempt_outcomes, created_at) select gen_random_uuid(), id, 'health','telegram','send','retries_exhausted','timeout','x',1,'{}','[]',created_at from messenger.delivery_requests where status='dead_lettered'")
    await db.execute("analyze")
    async def t(name, **a):
        best=9
        for _ in range(8):
            s=time.perf_counter(); r=await world.call(name, **a); best=min(best,time.perf_counter()-s); last=time.perf_counter()-s
        print(f"{name} {list(a)} best {best*1000:.1f} ms last {last*1000:.1f} ms"); return r
    r=await t("delivery_search", limit=50)
    for _ in range(3): r=await world.call("delivery_search", limit=500, cursor=r["next_cursor"])
    await t("delivery_search", limit=50, cursor=r["next_cursor"])
    old=await world.call("delivery_search", limit=1, until="2026-02-28T20:00:00Z"); await t("delivery_search", limit=50, cursor=old["next_cursor"])
    await t("delivery_search", limit=50, origin_butler="nobody")
    await t("delivery_search", limit=50, request_id=str(world.new_id()))
    await t("dead_letter_list", limit=500); await t("queue_depth"); await t("rate_limit_status"); await t("delivery_stats", group_by="channel")
    await t("delivery_trace", request_id=(await world.call("delivery_search",limit=1))["deliveries"][0]["request_id"]) if False else None
