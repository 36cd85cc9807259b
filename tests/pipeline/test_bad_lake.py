"""Files of the lake that are damaged or of another kind: the command line names them, fails, and writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
from pyspark.sql import SparkSession

from butlers.daemon.cli.exits import FAILED, OK
from butlers.pipeline.generate import FleetPlan, write_lake
from butlers.pipeline.lake.events import HEARTBEATS
from butlers.pipeline.lake.log import LakeLog
from butlers.storage.embedded import EmbeddedPostgres
from butlers.switchboard.connectors.deltas import ADDED
from tests.pipeline.command_line import run_job
from tests.pipeline.heartbeats import heartbeat_database

PLAN = FleetPlan(connectors=4, start=date(2026, 3, 1), days=3, seed=2)
FROM, TO = datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC)
COUNT = "SELECT count(*) FROM switchboard.connector_stats_hourly"


async def test_a_bad_file_is_named_and_nothing_is_written(
    spark: SparkSession, postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    folder = tmp_path / "lake" / HEARTBEATS.name
    write_lake(spark, PLAN, tmp_path / "lake", tell=lambda *_: None)
    of_the_day = (file for file in LakeLog(folder).state().files.values() if file.date == f"{FROM:%Y-%m-%d}")
    path = folder / max(of_the_day, key=lambda file: file.bytes).path
    whole, place = path.read_bytes(), _within_a_column(path, ADDED[0])
    flipped = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    stranger = pyarrow.table({"received_at": ["never"] * 3})
    spoilt: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: path.write_bytes(whole[: len(whole) // 2]), "not a whole Parquet file"),
        (lambda: path.write_bytes(flipped), "the file cannot be read"),
        (lambda: pyarrow.parquet.write_table(stranger, path), "not the file that was written here"),
    )
    async with heartbeat_database(postgres_server, ()) as (dsn, database):
        for spoil, words in spoilt:
            spoil()
            code, told = await run_job("connector-stats-hourly", FROM, TO, dsn=dsn, folder=tmp_path, source="lake")
            assert code == FAILED, told
            assert path.name in told["error"]["message"]
            assert words in told["error"]["message"]
            assert await database.fetchval(COUNT) == 0
        path.write_bytes(whole)
        code, told = await run_job("connector-stats-hourly", FROM, TO, dsn=dsn, folder=tmp_path, source="lake")
        assert (code, told["rows_out"]) == (OK, await database.fetchval(COUNT))
        outcomes = await database.fetch("SELECT outcome, error ->> 'message' AS said FROM pipeline.pipeline_runs")
    assert len(list((tmp_path / "pipeline" / "spark").glob("*.lock"))) == 1, "each run swept what the one before left"
    assert sorted(row["outcome"] for row in outcomes) == ["failed"] * 3 + ["succeeded"]
    assert all(path.name in row["said"] for row in outcomes if row["outcome"] == "failed")


def _within_a_column(path: Path, name: str) -> int:
    """A place in the middle of the first page of a column, whose numbers the job reads."""
    metadata = pyarrow.parquet.read_metadata(path)
    column = metadata.row_group(0).column(metadata.schema.to_arrow_schema().get_field_index(name))
    begin = column.dictionary_page_offset or column.data_page_offset
    return int(begin + column.total_compressed_size // 2)
