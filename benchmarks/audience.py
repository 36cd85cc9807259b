"""A million recipients planned on Spark, and a random sample of them planned by the online service.

    full        everybody on Spark, without limits; the sample once more through `send_message`, message by message
    throttled   a smaller audience with limits that bind: everybody both ways

Whom a limit hits depends on all the others, so under limits a sample alone means nothing to the service: there the
whole audience goes both ways. Every recipient must come out the same: channel, moment, reason and detail. The people
are of every kind: wishes and refusals, quiet hours in eleven zones in the night Europe's clocks go forward, all kinds
of permissions. Prints one JSON line; the exit code is 1 when a recipient differs or the rate is
missed; the rate of an audience below half a million is told and not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from benchmarks.planning import people
from benchmarks.planning.recipients import Answers, OnlineService, answers, read_plan, run_job, settle
from butlers.clock import SystemClock
from butlers.outbound import MIGRATIONS
from butlers.pipeline.session import SessionSettings, spark_session
from butlers.storage.database import Database, create_database_if_missing
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import migrate

GOAL_PER_S = 5_000  # recipients planned, whole job, files and all
RATED_FROM = 500_000  # recipients; below, what is measured is the start of Spark's workers
_AT_ONCE = 20_000  # people stored in one go
_OF_ONE_MESSAGE = 1_000  # recipients of one online message
_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    recipients: int
    sample: int
    throttled: int
    memory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    compared: int
    differing: int
    example: str | None


async def run(size: Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="butlers-bench-") as name:
        folder = Path(name)
        server = EmbeddedPostgres(folder / "postgres", durable=False)
        server.start()
        try:
            await create_database_if_missing(server.uri(""), "audience")
            dsn = server.uri("audience")
            async with await Database.connect(dsn, max_size=2, command_timeout=600) as database:
                await migrate(database, [MIGRATIONS])
                await _settle(database, size.recipients)
                settings = SessionSettings(scratch=folder / "spark", memory=size.memory)
                with spark_session("bench audience", settings) as spark:
                    # On this thread: Spark finds a sink written in Python only where its session is the active one.
                    return await _measured(size, spark, database, dsn, folder)
        finally:
            server.stop()


async def _settle(database: Database, count: int) -> None:
    for first in range(0, count, _AT_ONCE):
        await settle(database, range(first, min(first + _AT_ONCE, count)))
    await database.execute("ANALYZE outbound.preferences, outbound.entitlements")
    _say(f"{count} people are stored")


async def _measured(size: Size, spark: SparkSession, database: Database, dsn: str, folder: Path) -> dict[str, Any]:
    warm = range(min(1_000, size.recipients))
    _planned(spark, dsn, folder, warm, people.UNLIMITED)
    seconds, plan = _planned(spark, dsn, folder, range(size.recipients), people.UNLIMITED)
    _say(f"{size.recipients} planned in {seconds:.1f} s")
    chosen = random.Random(size.recipients).sample(range(size.recipients), min(size.sample, size.recipients))
    sample = _compared(plan, await _online(database, chosen, people.UNLIMITED, _OF_ONE_MESSAGE))
    few = range(min(size.throttled, size.recipients))
    throttled_seconds, throttled_plan = _planned(spark, dsn, folder, few, people.TIGHT)
    _say(f"{len(few)} planned under limits in {throttled_seconds:.1f} s")
    throttled = _compared(throttled_plan, await _online(database, few, people.TIGHT, len(few)))
    return {
        "recipients": size.recipients,
        "seconds": round(seconds, 1),
        "per_s": round(size.recipients / seconds),
        "queued": sum(how != "blocked" for how, _, _ in plan.values()),
        "sample": _told(sample),
        "throttled": _told(throttled) | {"per_s": round(len(few) / throttled_seconds)},
    }


def _planned(
    spark: SparkSession, dsn: str, folder: Path, numbers: Sequence[int], pacing: dict[str, Any]
) -> tuple[float, Answers]:
    message_id = str(uuid4())
    message, audience = folder / "message.json", folder / "audience.csv"
    message.write_text(people.message(message_id, pacing=pacing))
    audience.write_text("\n".join(["recipient_id", *map(people.person_id, numbers)]))
    started = _CLOCK.monotonic()
    result = run_job(spark, dsn, folder, message=str(message), audience=str(audience))
    return _CLOCK.monotonic() - started, read_plan(spark, result)


async def _online(database: Database, numbers: Sequence[int], pacing: dict[str, Any], most: int) -> Answers:
    service = OnlineService(database=database)
    found: Answers = {}
    for some in _pieces(numbers, most):
        recipients = [people.person_id(number) for number in some]
        message = people.message(str(uuid4()), pacing=pacing, recipients=recipients)
        found |= answers(await service.send(message))
    # What was scheduled here must not stand in the way of what comes next.
    await database.execute("TRUNCATE outbound.messages, outbound.scheduled_messages, outbound.blocked_recipients")
    return found


def _pieces(numbers: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    for first in range(0, len(numbers), most):
        yield numbers[first : first + most]


def _compared(plan: Answers, online: Answers) -> Compared:
    differing = [name for name, answer in online.items() if plan.get(name) != answer]
    example = f"{plan.get(differing[0])} is {online[differing[0]]} online" if differing else None
    return Compared(compared=len(online), differing=len(differing), example=example)


def _told(compared: Compared) -> dict[str, Any]:
    counted = {"compared": compared.compared, "equal": compared.compared - compared.differing}
    return counted | {"differing": compared.differing} | ({"example": compared.example} if compared.example else {})


def _judge(report: dict[str, Any]) -> dict[str, Any]:
    goals = {
        "equal": report["sample"]["differing"] == 0 and report["sample"]["compared"] > 0,
        "equal_under_limits": report["throttled"]["differing"] == 0 and report["throttled"]["compared"] > 0,
    }
    if report["recipients"] >= RATED_FROM:
        goals["per_s"] = report["per_s"] >= GOAL_PER_S
    return {"bench": "audience", **report, "goals": goals, "passed": all(goals.values())}


def _say(words: str) -> None:
    print(f"bench: {words}", file=sys.stderr, flush=True)


def _size() -> Size:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipients", type=int, default=1_000_000)
    parser.add_argument("--sample", type=int, default=10_000, help="recipients that the online service plans too")
    parser.add_argument("--throttled", type=int, default=10_000, help="audience of the comparison under limits")
    parser.add_argument("--memory", default="2g", help="of Spark")
    return Size(**vars(parser.parse_args()))


def main() -> int:
    report = _judge(asyncio.run(run(_size())))
    print(json.dumps(report), flush=True)
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
