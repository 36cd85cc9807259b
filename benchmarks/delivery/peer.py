"""procrastinate with a task that does nothing: deferred by so many at once, worked off by so many at once.

Runs as a process of its own, so that neither library shares the other's event loop:

    python -c "from benchmarks.delivery.peer import main; main()" DSN MESSAGES SUBMITTERS WORKERS POOL

(not with -m: it warns of an app that stands in the main module). It prints {"seconds": ...}, from the first defer to
the last job that is on record as done.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from time import monotonic
from typing import Any

import uvloop

SCHEMA_THERE = "SELECT to_regclass('procrastinate_jobs') IS NOT NULL AS there"


async def measure(dsn: str, messages: int, submitters: int, workers: int, pool: int) -> float:
    procrastinate: Any = importlib.import_module("procrastinate")
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=pool, max_size=pool))
    left, done = messages, asyncio.Event()

    @app.task(queue="bench")  # type: ignore[untyped-decorator, unused-ignore]
    async def send(number: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    async def submit(first: int) -> None:
        for number in range(first, messages, submitters):
            await send.defer_async(number=number)

    async with app.open_async():
        if not (await app.connector.execute_query_one_async(SCHEMA_THERE))["there"]:
            await app.schema_manager.apply_schema_async()
        worker = asyncio.create_task(app.run_worker_async(queues=["bench"], concurrency=workers))
        began = monotonic()
        await asyncio.gather(*(submit(first) for first in range(submitters)))
        await done.wait()
        await _until_recorded(app)
        seconds = monotonic() - began
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return seconds


async def _until_recorded(app: Any) -> None:
    """The last tasks ran; wait until their jobs are on record as done, as a receipt is."""
    while (await app.connector.execute_query_one_async(UNFINISHED))["unfinished"]:  # noqa: ASYNC110 - there is no sign
        await asyncio.sleep(0.01)


UNFINISHED = "SELECT count(*) AS unfinished FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"


def main() -> None:
    print(json.dumps({"seconds": uvloop.run(measure(sys.argv[1], *map(int, sys.argv[2:6])))}))
