"""What happened between heartbeats, by hour or by day: the one place where counters are compared.

A heartbeat carries counters since its process started. What happened between two heartbeats of a process is their
difference, and it belongs to the hour in which the later one came. What can go wrong with that:

    restart        another instance_id: its first heartbeat counts from zero
    counter reset  a smaller number than before counts from zero
    anew           the same instance_id, younger than before although sent later: it counts from zero
    overtaken      younger than one that came earlier: it says nothing new, only that the connector lived
    a gap          the next heartbeat carries what happened meanwhile

Age (`uptime_s`) tells the order, and not the connector's clock, which may be wrong or be set.
"""

from __future__ import annotations

from typing import Literal

from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries
from butlers.switchboard.fleet.windows import YOUNG_S, Window

EARLIER = 50  # heartbeats before a window: its first ones may have been overtaken by any of them


async def steps(
    connection: Executor | Database, queries: Queries, window: Window, by: Literal["hour", "day"]
) -> list[Record]:
    """Per connector and unit of time: what it did, and how it was."""
    return await connection.fetch(queries.steps_between_heartbeats, window.start, window.end, by, YOUNG_S, EARLIER)
