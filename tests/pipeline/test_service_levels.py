"""Service levels on Spark are those that the services answer online, and those of an independent oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from butlers.clock import ManualClock
from butlers.errors import ValidationError
from butlers.messenger.service_levels import ServiceLevels as DeliveryLevels
from butlers.pipeline.job import Window
from butlers.pipeline.jobs.service_levels import JOB, budget_policy
from butlers.reliability.error_budget import BudgetPolicy, burn_rate
from butlers.reliability.error_budget import Window as Events
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.queries import Queries
from butlers.switchboard.requests.reader import AcceptTimes
from butlers.switchboard.requests.reader import ServiceLevels as RequestLevels
from butlers.telemetry.telemetry import Telemetry
from tests.pipeline.delivery_records import NOTHING, SUMMER_TIME, Records, context_of, database_of, for_few_rows, oracle

Row = dict[str, Any]
Levels = dict[tuple[str, str], Row]  # by sli and dimensions

ORACLES = Path(__file__).parent / "oracles"
RECORDS = Records.around(SUMMER_TIME, seed=21, deliveries=400)
CHANNELS = ("email.bot", "telegram.bot", "telegram.user")
PERCENTILES = ("p50_ms", "p95_ms", "p99_ms")


async def stored(database: Database, window: Window) -> Levels:
    rows = await database.fetch(
        "select xmin::text, * from pipeline.service_levels where window_start = $1 and window_end = $2",
        window.start,
        window.end,
    )
    return {(row["sli"], canonical(row["dimensions"])): dict(row) for row in rows}


def canonical(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


def answers(query: str, window: Window) -> list[Row]:
    answer = oracle(window, RECORDS).execute((ORACLES / query).read_text())
    columns = [column[0] for column in answer.description or ()]
    return [dict(zip(columns, row, strict=True)) for row in answer.fetchall()]


@pytest.fixture
def quick(spark: SparkSession) -> Iterator[SparkSession]:
    with for_few_rows(spark):
        yield spark


@pytest.mark.heavy
async def test_every_indicator_is_what_the_services_and_the_oracle_say_and_a_second_run_changes_nothing(
    quick: SparkSession, postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    async with database_of(postgres_server, RECORDS) as (dsn, database):
        result = JOB.run(context_of(quick, dsn, SUMMER_TIME, tmp_path))
        levels = await stored(database, SUMMER_TIME)
        assert_like_the_oracle(levels)
        assert_like_messenger(levels, await messengers_answer(database, SUMMER_TIME))
        assert_like_switchboard(levels, await switchboards_answer(database, SUMMER_TIME))

        burn = await burns(database)
        assert_burnt_like_the_oracle(burn)
        await assert_burnt_as_messenger_counts(burn, database)
        assert result.details["indicators"] == len(levels)
        assert result.details["fed"] == len(burn) == len(result.details["burn"]) > 0
        fed = await database.fetch("select * from messenger.long_budget order by name, window_s")
        assert [(r["name"], r["window_s"], r["good"], r["bad"]) for r in fed] == sorted(
            (f"{r['channel']}.{r['identity_scope']}", r["window_s"], r["good"], r["bad"]) for r in burn
        )
        assert {row["as_of"] for row in fed} == {SUMMER_TIME.end}

        # A window before it, in which nothing happened: only what is in all, and no rate of nothing. Messenger keeps
        # what it has, which is newer.
        older = JOB.run(context_of(quick, dsn, NOTHING, tmp_path, objective="0.9"))
        quiet = await stored(database, NOTHING)
        assert {dimensions for _, dimensions in quiet} == {"{}"}
        assert [name for (name, _), row in quiet.items() if row["events"] or row["rate"] is not None] == []
        assert (older.details["fed"], older.details["burn"]) == (0, [])

        assert JOB.run(context_of(quick, dsn, SUMMER_TIME, tmp_path)).rows_out == result.rows_out
        assert await stored(database, SUMMER_TIME) == levels  # not even written again
        assert await stored(database, NOTHING) == quiet
        assert await burns(database) == burn


# --- the oracle ------------------------------------------------------------------------------------------------------


def assert_like_the_oracle(levels: Levels) -> None:
    expected = {(row["sli"], canonical(row["dimensions"])): row for row in answers("service_levels.sql", SUMMER_TIME)}
    assert levels.keys() == expected.keys()
    assert len({sli for sli, _ in expected}) == 11
    for place, row in expected.items():
        mine = levels[place]
        assert (mine["events"], mine["part"]) == (row["events"], row["part"]), place
        assert json.loads(mine["counts"]) == json.loads(row["counts"]), place
        for name in ("rate", *PERCENTILES):
            assert mine[name] == (row[name] if row[name] is None else pytest.approx(row[name], rel=1e-12)), place


async def burns(database: Database) -> list[Row]:
    rows = await database.fetch(
        "select xmin::text, * from pipeline.error_budget_burn order by window_s, channel, identity_scope"
    )
    return [dict(row) for row in rows]


def assert_burnt_like_the_oracle(burn: Sequence[Row]) -> None:
    expected = answers("error_budget.sql", SUMMER_TIME)
    assert [{name: row[name] for name in expected[0]} for row in burn] == expected
    policy = BudgetPolicy()
    assert [row["burn_rate"] for row in burn] == [
        burn_rate(Events(good=row["good"], bad=row["bad"]), policy) for row in expected
    ]


async def assert_burnt_as_messenger_counts(burn: Sequence[Row], database: Database) -> None:
    """Its judge's own query, over the shortest and the longest of our windows."""
    queries, end = Queries.load("butlers.messenger.service_levels", schema="messenger"), SUMMER_TIME.end
    short, long = timedelta(hours=6), timedelta(days=30)
    counted = await database.fetch(queries.budget_windows, end, end - short, end - long)
    mine = {(row["channel"], row["identity_scope"], row["window_s"]): (row["good"], row["bad"]) for row in burn}
    for row in counted:
        name = (row["channel"], row["identity_scope"])
        assert mine.get((*name, 21600), (0, 0)) == (row["short_good"], row["short_bad"])
        assert mine[(*name, 2592000)] == (row["long_good"], row["long_bad"])


# --- the services ----------------------------------------------------------------------------------------------------


async def messengers_answer(database: Database, window: Window) -> Row:
    clock = ManualClock(window.end)
    telemetry = Telemetry.create("messenger", "test-1", clock=clock)
    levels = DeliveryLevels(
        database=database,
        schema="messenger",
        clock=clock,
        telemetry=telemetry,
        policy=BudgetPolicy(),
        channels=CHANNELS,
        max_in_flight=100,
    )
    try:
        return await levels.slis(window.start, window.end)
    finally:
        telemetry.shutdown()


async def switchboards_answer(database: Database, window: Window) -> Row:
    clock = ManualClock(window.end)
    times = AcceptTimes(database=database, schema="switchboard", clock=clock)
    queries = Queries.load("butlers.switchboard", schema="switchboard")
    levels = RequestLevels(database=database, queries=queries, accept_times=times, clock=clock)
    return await levels.slis(window.start, window.end)


def assert_like_messenger(levels: Levels, said: Row) -> None:
    for dimensions, row in each(said["success"], "channel", "identity_scope"):
        mine = levels["delivery_success", dimensions]
        assert mine["rate"] == row["success_rate"]
        counts = json.loads(mine["counts"])
        assert counts == {name: row[name] for name in counts}
    for dimensions, row in each(said["latency"], "channel", "identity_scope", "intent"):
        mine = levels["delivery_latency", dimensions]
        assert (mine["events"], mine["p50_ms"], mine["p95_ms"]) == (row["deliveries"], row["p50_ms"], row["p95_ms"])
    twice, mine = said["duplicates"], levels["duplicates", "{}"]
    assert (mine["events"], mine["part"], mine["rate"]) == (
        twice["delivered"],
        twice["duplicates"],
        twice["duplicate_rate"],
    )
    assert json.loads(mine["counts"]) == {n: twice[n] for n in ("sent_again", "delivered_again", "possible")}
    for dimensions, row in [("{}", said["admission"]), *each(said["admission"]["by_channel"], "channel")]:
        mine = levels["admission_rejection", dimensions]
        counts = json.loads(mine["counts"])
        assert mine["rate"] == row["rejection_rate"]
        assert counts == {name: row[name] for name in counts}
    letters = said["dead_letters"]
    for dimensions, row in each(letters["by_channel"], "channel"):
        mine = levels["dead_letters", dimensions]
        assert (mine["events"], json.loads(mine["counts"])) == (row["dead_letters"], {"discarded": row["discarded"]})
    assert levels["dead_letters", "{}"]["events"] == letters["dead_letters"]
    replays = levels["replay_success", "{}"]
    assert (replays["events"], replays["part"], replays["rate"]) == (
        letters["replays_ended"],
        letters["replays_delivered"],
        letters["replay_success_rate"],
    )
    doubts = said["uncertain"]
    for dimensions, row in [("{}", doubts), *each(doubts["by_channel"], "channel", "identity_scope")]:
        mine = levels["uncertain_settlement", dimensions]
        assert (mine["events"], mine["rate"]) == (row["uncertain"], row["settle_rate"])


def assert_like_switchboard(levels: Levels, said: Row) -> None:
    for dimensions, row in each(said["accept"], "source_channel"):
        assert timed(levels["accept_latency", dimensions]) == (row["messages"], *(row[p] for p in PERCENTILES))
    for dimensions, row in each(said["completion"], "source_channel", "policy_tier"):
        mine = levels["completion_latency", dimensions]
        assert timed(mine)[1:] == tuple(row[p] for p in PERCENTILES)
        counts = json.loads(mine["counts"])
        assert counts == {name: row[name] for name in counts}
    for dimensions, row in each(said["interactive"], "source_channel", "lifecycle_state"):
        assert timed(levels["interactive_latency", dimensions]) == (row["requests"], *(row[p] for p in PERCENTILES))
    for dimensions, row in each(said["routes"]["by_butler"], "target_butler"):
        mine = levels["route_success", dimensions]
        assert (mine["events"], mine["part"], mine["rate"]) == (row["routes"], row["succeeded"], row["success_rate"])
        assert json.loads(mine["counts"]) == row["errors"]
    assert levels["route_success", "{}"]["rate"] == said["routes"]["success_rate"]


def each(rows: Sequence[Mapping[str, Any]], *dimensions: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    assert rows, dimensions  # equal to nothing would prove nothing
    for row in rows:
        yield json.dumps({name: row[name] for name in dimensions}, sort_keys=True), row


def timed(row: Row) -> tuple[Any, ...]:
    return (row["events"], *(row[name] for name in PERCENTILES))


@pytest.mark.parametrize("text", ["1", "0", "much", "-0.5", "nan"])
def test_an_objective_without_sense_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="between 0 and 1"):
        budget_policy({"objective": text})
    assert budget_policy({"objective": "0.999"}).objective == 0.999
