"""The connectors as Switchboard sees them: who is there, what they did, and the past they are asked to fetch.

connector ── connector.heartbeat ──> heartbeats ──> connector_registry          who is there, for ever
                                               └──> connector_heartbeat_log     7 days, each with what it added (deltas)
schedules ── hourly ─> rollups: sums of heartbeats ──> connector_stats_hourly         30 days
             daily  ─> rollups: sums of hours ──> connector_stats_daily                1 year
                                message_inbox ──> connector_fanout_daily               1 year
             pruning ─> what is older goes
operators ── create_backfill_job, backfill.* ──> backfill_jobs <── backfill.poll, backfill.progress ── connector
"""
