"""How much does the group committer give? The same durable rows, written three ways in one run.

    single    each writer commits its own row (10 connections)
    grouped   the same writers through GroupCommitter
    batched   bare multi-row inserts of 500, the upper bound

Prints one JSON line; `vs_single` and `vs_batched` are ratios of rows per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from butlers.clock import SystemClock
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.group_commit import GroupCommitter

INSERT = "insert into bench (writer, value) select * from unnest($1::int[], $2::int[])"
Row = tuple[int, int]


async def single(database: Database, rows: Sequence[Row], writers: int) -> None:
    async def write(mine: Sequence[Row]) -> None:
        for writer, value in mine:
            await database.execute(INSERT, [writer], [value])

    await asyncio.gather(*(write(rows[n::writers]) for n in range(writers)))


async def grouped(database: Database, rows: Sequence[Row], writers: int) -> None:
    async def commit(batch: Sequence[Row]) -> Sequence[None]:
        await database.execute(INSERT, [row[0] for row in batch], [row[1] for row in batch])
        return [None] * len(batch)

    committer = GroupCommitter(commit)

    async def write(mine: Sequence[Row]) -> None:
        for row in mine:
            await committer.submit(row)

    await asyncio.gather(*(write(rows[n::writers]) for n in range(writers)))
    await committer.close()


async def batched(database: Database, rows: Sequence[Row], _writers: int) -> None:
    for start in range(0, len(rows), 500):
        batch = rows[start : start + 500]
        await database.execute(INSERT, [row[0] for row in batch], [row[1] for row in batch])


async def measure(way: Callable[..., Awaitable[None]], database: Database, rows: Sequence[Row], writers: int) -> float:
    await database.execute("truncate bench")
    clock = SystemClock()
    started = clock.monotonic()
    await way(database, rows, writers)
    elapsed = clock.monotonic() - started
    assert await database.fetchval("select count(*) from bench") == len(rows)
    return len(rows) / elapsed


async def run(count: int, writers: int, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="butlers-bench-") as folder:
        server = EmbeddedPostgres(Path(folder))
        await asyncio.to_thread(server.start)
        try:
            async with await Database.connect(server.uri("postgres"), max_size=10) as database:
                await database.execute("create table bench (id bigserial primary key, writer int, value int)")
                rows = [(n % writers, n) for n in range(count)]
                best: dict[str, float] = {}
                for _ in range(rounds):
                    for way in (single, grouped, batched):
                        rate = await measure(way, database, rows, writers)
                        best[way.__name__] = max(rate, best.get(way.__name__, 0.0))
        finally:
            await asyncio.to_thread(server.stop)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--writers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rates = asyncio.run(run(given.rows, given.writers, given.rounds))
    report = {f"{name}_rows_per_s": round(rate) for name, rate in rates.items()}
    ratios = {
        "vs_single": round(rates["grouped"] / rates["single"], 2),
        "vs_batched": round(rates["grouped"] / rates["batched"], 2),
    }
    print(json.dumps({"bench": "group_commit", **report, **ratios}))


if __name__ == "__main__":
    main()
