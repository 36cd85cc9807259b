"""`scripts/chaos messenger|switchboard|database|hostile --kills 25 --messages 2500`: progress, then a JSON line.

The exit code is 0 when every goal was reached, 1 when one was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.chaos import database, hostile, messenger
from benchmarks.chaos.report import Plan
from benchmarks.chaos.switchboard import run as switchboard
from butlers.errors import ButlersError

LONGEST_S = 1800.0  # a run that hangs is a run that failed
RUNS = {
    "database": database.run,
    "hostile": hostile.run,
    "messenger": messenger.run,
    "switchboard": switchboard.run,
}
KILLS = {"hostile": 1}  # unless it is said; 25 of the others


def main() -> int:
    given = _arguments()
    plan = Plan(
        kills=KILLS.get(given.what, 25) if given.kills is None else given.kills,
        messages=given.messages,
        seed=given.seed,
        settings=given.set,
    )
    with tempfile.TemporaryDirectory(prefix="butlers-chaos-", ignore_cleanup_errors=True) as folder:
        report = asyncio.run(_bounded(given.what, plan, Path(given.keep or folder)))
    print(json.dumps(report), flush=True)
    return 0 if report["passed"] else 1


async def _bounded(what: str, plan: Plan, folder: Path) -> dict[str, Any]:
    task = asyncio.current_task()
    if task is not None:  # TERM ends the children as ctrl-C does
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.timeout(LONGEST_S):
        return await RUNS[what](plan, folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("what", choices=sorted(RUNS), help="whose process is killed")
    parser.add_argument("--kills", type=int, help="how often (25; hostile: 1)")
    parser.add_argument(
        "--messages", type=int, default=2500, help="how many messages are handed in (2500; not of hostile)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the dice for kills, faults and messages (1)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting for the victim")
    parser.add_argument("--keep", metavar="FOLDER", help="use this folder and leave everything in it")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the result is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
    except ButlersError as error:  # a process ended by itself, or never started
        print(f"chaos: {error}", file=sys.stderr)
        sys.exit(1)
