"""The two rollups done in SQL, for tests of what is rolled up and when; the product does them on Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from butlers.storage.database import Database
from butlers.switchboard.connectors.rollups import HOURS_REACH, Window

_ROLL_UP_HOURS = """
INSERT INTO switchboard.connector_stats_hourly
    (connector_type, endpoint_identity, hour, messages_ingested, messages_failed, source_api_calls, dedupe_accepted,
     heartbeat_count, healthy_count, degraded_count, error_count)
SELECT connector_type, endpoint_identity, date_trunc('hour', received_at, 'UTC'),
       least(sum(added_messages_ingested), 9223372036854775807)::bigint,
       least(sum(added_messages_failed), 9223372036854775807)::bigint,
       least(sum(added_source_api_calls), 9223372036854775807)::bigint,
       least(sum(added_dedupe_accepted), 9223372036854775807)::bigint,
       count(*), count(*) FILTER (WHERE state = 'healthy'), count(*) FILTER (WHERE state = 'degraded'),
       count(*) FILTER (WHERE state = 'error')
FROM switchboard.connector_heartbeat_log
WHERE received_at >= $1 AND received_at < $2
GROUP BY 1, 2, 3
ON CONFLICT (connector_type, endpoint_identity, hour) DO UPDATE SET
    messages_ingested = excluded.messages_ingested, messages_failed = excluded.messages_failed,
    source_api_calls = excluded.source_api_calls, dedupe_accepted = excluded.dedupe_accepted,
    heartbeat_count = excluded.heartbeat_count, healthy_count = excluded.healthy_count,
    degraded_count = excluded.degraded_count, error_count = excluded.error_count
RETURNING hour
"""
_ROLL_UP_DAYS = """
INSERT INTO switchboard.connector_stats_daily
    (connector_type, endpoint_identity, day, messages_ingested, messages_failed, source_api_calls, dedupe_accepted,
     heartbeat_count, healthy_count, degraded_count, error_count, uptime_pct)
SELECT connector_type, endpoint_identity, (hour AT TIME ZONE 'UTC')::date,
       least(sum(messages_ingested), 9223372036854775807)::bigint,
       least(sum(messages_failed), 9223372036854775807)::bigint,
       least(sum(source_api_calls), 9223372036854775807)::bigint,
       least(sum(dedupe_accepted), 9223372036854775807)::bigint,
       sum(heartbeat_count), sum(healthy_count), sum(degraded_count), sum(error_count),
       round(sum(healthy_count) / nullif(sum(heartbeat_count), 0) * 100, 2)
FROM switchboard.connector_stats_hourly
WHERE hour >= $1 AND hour < $2
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3
ON CONFLICT (connector_type, endpoint_identity, day) DO UPDATE SET
    messages_ingested = excluded.messages_ingested, messages_failed = excluded.messages_failed,
    source_api_calls = excluded.source_api_calls, dedupe_accepted = excluded.dedupe_accepted,
    heartbeat_count = excluded.heartbeat_count, healthy_count = excluded.healthy_count,
    degraded_count = excluded.degraded_count, error_count = excluded.error_count, uptime_pct = excluded.uptime_pct
RETURNING connector_type, endpoint_identity, day
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingInSql:
    database: Database

    async def __call__(self, job: str, window: Window, **arguments: str) -> dict[str, Any]:
        if job == "connector-stats-hourly":
            return {"rows": await self._hours(window)}
        assert (job, arguments) == ("connector-stats-daily", {"hours": "again"})
        await self._hours(Window(start=max(window.start, window.end - HOURS_REACH), end=window.end))
        return {"rows": len(await self.database.fetch(_ROLL_UP_DAYS, window.start, window.end))}

    async def _hours(self, window: Window) -> int:
        return len(await self.database.fetch(_ROLL_UP_HOURS, window.start, window.end))
