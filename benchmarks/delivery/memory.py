"""Whether memory follows the number of recipients: as many distinct ones as asked for, through the whole door."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

from benchmarks.delivery.load import closed_loop
from benchmarks.delivery.plane import Plane
from butlers.clock import Clock

GOAL_MB = 64.0  # a map of a million recipients would take several times that
WARM_UP = 5_000
STEP = 50_000


async def measure_memory(plane: Plane, *, recipients: int, submitters: int, clock: Clock) -> dict[str, Any]:
    first = 100_000_000
    await closed_loop(plane.submit, range(first, first + WARM_UP), submitters=submitters, clock=clock)
    before = _resident_mb()
    for start in range(0, recipients, STEP):
        numbers = range(first + WARM_UP + start, first + WARM_UP + min(start + STEP, recipients))
        await closed_loop(plane.submit, numbers, submitters=submitters, clock=clock)
        print(f"bench: {start + len(numbers)} recipients, {_resident_mb():.0f} MB", file=sys.stderr, flush=True)
    after = _resident_mb()
    return {
        "recipients": recipients,
        "rss_before_mb": round(before, 1),
        "rss_after_mb": round(after, 1),
        "growth_mb": round(after - before, 1),
    }


def _resident_mb() -> float:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024
