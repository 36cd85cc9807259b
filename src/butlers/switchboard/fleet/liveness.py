"""Whether a connector is there, by its last heartbeat. Silence never removes one."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

ONLINE_WITHIN = timedelta(minutes=2)
STALE_WITHIN = timedelta(minutes=4)


class Liveness(StrEnum):
    ONLINE = "online"
    STALE = "stale"
    OFFLINE = "offline"


def liveness(last_heartbeat_at: datetime, now: datetime) -> Liveness:
    silence = now - last_heartbeat_at
    if silence < ONLINE_WITHIN:
        return Liveness.ONLINE
    return Liveness.STALE if silence <= STALE_WITHIN else Liveness.OFFLINE
