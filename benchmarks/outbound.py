"""The delivery runtime: send_message, and its queues beside arq and dramatiq on one Redis.

    scripts/bench outbound [--quick]

Goals: p99 of send_message for one recipient below 5 ms in memory; 20,000 recipients a second for messages to a
thousand, in memory; the Redis queue ahead of arq and of dramatiq. The figures on PostgreSQL stand beside them without a
goal. The last line is JSON; the exit code is 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.sending import messages
from benchmarks.sending.queues import Size, measure_queues

P99_MS = 5.0
RECIPIENTS_PER_S = 20_000


async def measure(*, quick: bool) -> dict[str, Any]:
    calls, bulk_calls = (200, 3) if quick else (2_000, 20)
    found: dict[str, Any] = {"memory": await messages.measure(messages.in_memory(), calls=calls, bulk_calls=bulk_calls)}
    with tempfile.TemporaryDirectory(prefix="butlers-bench-", ignore_cleanup_errors=True) as folder:
        async with messages.on_postgres(Path(folder)) as service:
            found["postgres"] = await messages.measure(service, calls=calls // 4, bulk_calls=bulk_calls)
    size = Size(entries=300, in_memory=3_000, in_postgres=100, rounds=1) if quick else Size()
    queues = await measure_queues(size)
    goals = {
        "p99_ms": found["memory"]["p99_ms"] < P99_MS,
        "recipients_per_s": found["memory"]["recipients_per_s"] >= RECIPIENTS_PER_S,
    }
    return {"send_message": found, "queues": queues, "goals": goals | queues.get("goals", {})}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few calls, to try it out; judges nothing")
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(measure(quick=given.quick))
    print(json.dumps(result))
    return 0 if given.quick or all(result["goals"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
