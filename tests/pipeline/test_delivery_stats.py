"""Delivery statistics on Spark are those of the tool and of an independent oracle, for any window and grouping."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from butlers.butler.identity import Caller
from butlers.butler.toolbox import ToolBox
from butlers.clock import ManualClock
from butlers.errors import ValidationError
from butlers.messenger.tools.deliveries import DeliveryRecords, TrackingTools
from butlers.operations.operation import Role
from butlers.pipeline.job import Window
from butlers.pipeline.jobs.delivery_stats import JOB, Grouping, delivery_stats
from butlers.pipeline.tables.deliveries import ADMISSION_OUTCOMES, ATTEMPTS, DELIVERIES
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.pipeline.delivery_records import (
    LEAP_DAY,
    NOTHING,
    SUMMER_TIME,
    Records,
    context_of,
    database_of,
    for_few_rows,
    frame_of,
    oracle,
)

Row = dict[str, Any]

ORACLE = (Path(__file__).parent / "oracles" / "delivery_stats.sql").read_text()
OPERATOR = Caller(name="ann", role=Role.OPERATOR)
ONLINE = ("channel", "intent", "origin_butler", "outcome", "error_class")  # what the tool can group by
CASES = (
    (SUMMER_TIME, "error_class"),
    (SUMMER_TIME, "hour,channel,identity_scope,intent,priority,outcome"),
    (LEAP_DAY, "day"),
    (NOTHING, "channel"),
)
RECORDS = (Records.around(SUMMER_TIME, seed=11), Records.around(LEAP_DAY, seed=12, deliveries=120))
# By the tool's name for it: ours.
SAME = ("total", "delivered", "failed", "dead_lettered", "uncertain", "expired", "open")
ROUNDED = {
    **dict.fromkeys(("success_rate", "dead_letter_rate", "retry_rate"), 6),
    **dict.fromkeys(("p50_ms", "p95_ms", "provider_p50_ms", "provider_p95_ms"), 3),
}


def on_spark(spark: SparkSession) -> list[list[Row]]:
    """All cases in one go: the rows of each."""
    tables = (DELIVERIES, ATTEMPTS, ADMISSION_OUTCOMES)
    deliveries, attempts, door = (frame_of(spark, table, *RECORDS) for table in tables)
    frames = [
        delivery_stats(deliveries, attempts, door, window=window, grouping=Grouping.parse(text)).select(
            sf.lit(number).alias("number"), "*"
        )
        for number, (window, text) in enumerate(CASES)
    ]
    rows = [row.asDict() for row in reduce(DataFrame.unionByName, frames).collect()]
    return [[row for row in rows if row["number"] == number] for number in range(len(CASES))]


def by_oracle(window: Window, grouping: str) -> list[Row]:
    names = grouping.split(",")
    query = ORACLE.replace("{columns}", grouping).replace("{grouped}", grouping)
    query = query.replace("{pairs}", ", ".join(f"'{name}', ended.{name}" for name in names))
    query = query.replace("{same}", " AND ".join(f"timed.{name} IS NOT DISTINCT FROM ended.{name}" for name in names))
    answer = oracle(window, *RECORDS).execute(query)
    columns = [column[0] for column in answer.description or ()]
    return [dict(zip(columns, row, strict=True)) for row in answer.fetchall()]


async def _unasked(_request_id: UUID) -> Row:
    raise AssertionError("statistics ask no lineage")


async def by_the_tool(database: Database, window: Window, grouping: str) -> Row:
    records = DeliveryRecords.of(database, "messenger")
    tools = ToolBox(TrackingTools(records=records, clock=ManualClock(window.end), lineage=_unasked).tools())
    asked = {"since": window.start.isoformat(), "until": window.end.isoformat(), "group_by": grouping}
    return await tools.call("messenger_delivery_stats", OPERATOR, asked)


def as_the_tool_says(row: Mapping[str, Any]) -> Row:
    rounded = {name: None if row[name] is None else round(row[name], digits) for name, digits in ROUNDED.items()}
    return {name: row[name] for name in SAME} | rounded


def keyed(rows: list[Row]) -> dict[tuple[str, str], Row]:
    """By grouping and group; what is not of the result itself is left out."""
    places = {(row["grouping"], canonical(row["group_values"])): row for row in rows}
    assert len(places) == len(rows)
    return places


def canonical(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


@pytest.fixture
def quick(spark: SparkSession) -> Iterator[SparkSession]:
    with for_few_rows(spark):
        yield spark


async def test_the_numbers_are_those_of_the_tool_and_of_the_oracle(
    quick: SparkSession, postgres_server: EmbeddedPostgres
) -> None:
    found = on_spark(quick)
    async with database_of(postgres_server, *RECORDS) as (_, database):
        for (window, grouping), rows in zip(CASES, found, strict=True):
            mine = keyed(rows)
            assert_like_the_oracle(mine, keyed(by_oracle(window, grouping)))
            if grouping in ONLINE:
                assert_like_the_tool(mine, await by_the_tool(database, window, grouping), grouping)


def assert_like_the_oracle(mine: dict[tuple[str, str], Row], expected: dict[tuple[str, str], Row]) -> None:
    assert mine.keys() == expected.keys()
    for place, row in expected.items():
        for name in row.keys() - {"grouping", "group_values"}:
            wanted = row[name] if row[name] is None else pytest.approx(row[name], rel=1e-12)
            assert mine[place][name] == wanted, (place, name)


def assert_like_the_tool(mine: dict[tuple[str, str], Row], answer: Row, grouping: str) -> None:
    overall = mine["", "{}"]
    assert as_the_tool_says(overall) == {name: answer[name] for name in (*SAME, *ROUNDED)}
    at_the_door = {name.removeprefix("requests_"): overall[name] for name in overall if name.startswith("requests_")}
    assert answer["requests"] == (at_the_door if any(at_the_door.values()) else None)
    groups = {canonical(json.dumps({grouping: group["key"]})): group for group in answer["groups"]}
    shown = {values: row for (named, values), row in mine.items() if named}
    assert groups.keys() == shown.keys()
    for values, row in shown.items():
        assert as_the_tool_says(row) == {name: groups[values][name] for name in (*SAME, *ROUNDED)}, values


async def stored(database: Database) -> list[Row]:
    rows = await database.fetch(
        "select xmin::text, * from pipeline.delivery_stats order by window_start, window_end, grouping, group_values"
    )
    return [dict(row) for row in rows]


@pytest.mark.heavy
async def test_a_run_fills_its_slice_again_and_leaves_the_others_alone(
    quick: SparkSession, postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    async with database_of(postgres_server, *RECORDS) as (dsn, database):
        by_outcome = context_of(quick, dsn, SUMMER_TIME, tmp_path, group_by="outcome")
        by_intent = context_of(quick, dsn, SUMMER_TIME, tmp_path, group_by=" intent, channel ")
        result, _ = JOB.run(by_outcome), JOB.run(by_intent)
        first = await stored(database)
        assert (
            result.rows_out
            == len(result.details["stats"])
            == len([r for r in first if r["grouping"] != "intent,channel"])
        )
        assert result.rows_in == result.details["stats"][0]["total"] == first[0]["total"] > 0
        assert result.details["stats"][0]["window_start"] == SUMMER_TIME.start.isoformat()
        assert JOB.run(by_outcome).rows_out == result.rows_out
        assert await stored(database) == first  # not even written again

        # A whole group comes to its end, and another kind of ending appears.
        await database.execute("update messenger.delivery_requests set status = 'expired' where status = 'failed'")
        JOB.run(by_outcome)
        later = {(row["grouping"], row["group_values"]): row for row in await stored(database)}
        before = {(row["grouping"], row["group_values"]): row for row in first}
        assert before.keys() - later.keys() == {("outcome", '{"outcome":"failed"}')}
        assert later["", "{}"]["failed"] == 0
        untouched = {key for key in before if key[0] == "intent,channel"}
        assert untouched and all(later[key] == before[key] for key in untouched)


@pytest.mark.parametrize(("text", "problem"), [("colour", "colour is none of"), ("channel,channel", "twice")])
def test_a_grouping_without_sense_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Grouping.parse(text)
