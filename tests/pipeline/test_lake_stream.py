"""The lake is filled through the job: all events, once per version, without a word that somebody wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from butlers.errors import ConfigurationError, ValidationError
from butlers.pipeline.lake.events import DELIVERIES, EVENTS, HEARTBEATS, RECEIPTS, REQUESTS
from butlers.pipeline.lake.reading import read_events, read_versions
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.files import holding
from tests.pipeline.lake_system import MARCH, NOON, LakeSystem, add_months_from, lake_system


@pytest.fixture
async def system(postgres_server: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[LakeSystem]:
    async with lake_system(postgres_server, tmp_path) as system:
        yield system


@pytest.mark.heavy
async def test_every_version_arrives_once_and_no_text_at_all(spark: SparkSession, system: LakeSystem):
    await system.beat(20)
    await system.beat(5, at=add_months_from(NOON, 1))
    await system.accept()
    await system.deliver()
    first = system.run(spark, "lake-stream")
    counts = {name: first.details[name]["rows"] for name in EVENTS}
    assert counts == {
        "heartbeats": 25, "requests": 1, "routing": 0, "deliveries": 1, "attempts": 1, "receipts": 1
    }  # fmt: skip
    stored = [
        row for path in system.lake.rglob("date=*/*.parquet") for row in pyarrow.parquet.read_table(path).to_pylist()
    ]
    assert len(stored) == 29
    assert "SECRET" not in repr(stored)
    request = next(row for row in stored if "outcomes" in row)
    assert json.loads(request["targets"]) == ["finance", "travel"]
    assert json.loads(request["outcomes"])[0]["error_class"] == "timeout"
    assert (request["error_class"], request["override_action"]) == ("timeout", "retry")

    await system.writer.execute("UPDATE messenger.delivery_requests SET status = 'delivered'")
    second = system.run(spark, "lake-stream", event="deliveries")
    assert second.rows_out == 1
    assert system.state(DELIVERIES).rows == 2
    delivery = read_events(spark, system.lake, DELIVERIES, MARCH).select("status", "date").collect()
    assert delivery == [("delivered", NOON.date())]
    assert read_events(spark, system.lake, HEARTBEATS, MARCH).count() == 20
    assert read_events(spark, system.lake, RECEIPTS, MARCH).select("permanent").first() == (True,)


async def test_a_restored_log_or_a_lost_folder_costs_no_row_and_repeats_none(spark: SparkSession, system: LakeSystem):
    for _ in range(3):
        await system.beat(10)
    assert system.run(spark, "lake-stream", event="heartbeats").rows_out == 30
    backup = shutil.copytree(system.lake / "heartbeats", system.lake.parent / "backup")
    await system.beat(7)
    assert system.run(spark, "lake-stream", event="heartbeats").rows_out == 7
    # The log as it was before: what came since is not there, and Spark's checkpoint says that it is.
    shutil.rmtree(system.lake / "heartbeats")
    shutil.copytree(backup, system.lake / "heartbeats")
    assert system.run(spark, "lake-stream", event="heartbeats").rows_out == 7
    shutil.rmtree(system.lake / "heartbeats")
    assert system.run(spark, "lake-stream", event="heartbeats").rows_out == 37
    rows = read_versions(spark, system.lake, HEARTBEATS)
    assert (rows.count(), rows.select("id").distinct().count()) == (37, 37)


async def test_what_makes_no_sense_is_refused_before_anything_is_written(spark: SparkSession, system: LakeSystem):
    for arguments in ({"event": "gossip"}, {"trigger": "often"}, {"trigger": "continuous", "every": "soon"}):
        with pytest.raises(ValidationError):
            system.run(spark, "lake-stream", **arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="lake-stream first"):
        read_events(spark, system.lake, REQUESTS)
    assert not system.lake.exists()
    (system.lake / "heartbeats").mkdir(parents=True)
    with (
        holding(system.lake / "heartbeats" / "_stream.lock"),
        pytest.raises(ConfigurationError, match="another process streams"),
    ):
        system.run(spark, "lake-stream", event="heartbeats")
