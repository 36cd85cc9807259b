"""The stream of changes misses nothing that commits late and repeats nothing, whoever writes at the same time.

The reader is asked here as Spark asks it; `test_lake_stream.py` has Spark ask it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from butlers.errors import ConfigurationError, InternalError
from butlers.pipeline.connection import connect
from butlers.pipeline.lake.events import EVENTS, HEARTBEATS, Event
from butlers.pipeline.sources.changes import (
    ChangesReader,
    Mark,
    Slice,
    _end,
    _slices,
    check_numbers,
    read_horizon,
    stream_options,
)
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import MigrationSet, migrate
from butlers.storage.retention import ensure_month_partitions
from tests.database import cloned_database
from tests.pipeline.lake_system import MIGRATIONS, NOON, LakeSystem, add_months_from, lake_system

Row = dict[str, Any]
Offset = dict[str, Any]


@pytest.fixture
async def system(postgres_server: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[LakeSystem]:
    async with lake_system(postgres_server, tmp_path) as system:
        yield system


def reader_of(system: LakeSystem, event: Event = HEARTBEATS) -> ChangesReader:
    with connect(system.dsn, autocommit=True) as connection, connection.cursor() as cursor:
        server = read_horizon(cursor).server
    options = stream_options(
        system.dsn, event.table, select=event.expressions, start=0, server=server, rows_per_batch=1000
    )
    return ChangesReader(options, event.schema)


def rows_between(reader: ChangesReader, start: Offset, end: Offset) -> list[Row]:
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    wanted = [batch.select(["id", "state", "change"]) for batch in batches]
    return pyarrow.Table.from_batches(wanted).to_pylist() if wanted else []


def next_rows(reader: ChangesReader, start: Offset, limit: ReadLimit | None = None) -> tuple[list[Row], Offset]:
    end = reader.latestOffset(start, limit or ReadAllAvailable())
    return rows_between(reader, start, end), end


async def test_rows_of_a_transaction_that_commits_late_come_once(system: LakeSystem):
    """Given a transaction that began to write first, when a later one commits before it, then nothing is missed."""
    reader = reader_of(system)
    await system.beat(3)
    late, undone = await system.another_writer(), await system.another_writer()
    slow, dropped = late.transaction(), undone.transaction()
    await slow.start()
    await system.beat(5, by=late)  # has its number, and is not visible
    await dropped.start()
    await system.beat(100, by=undone)
    await system.beat(7)  # a higher number, visible at once

    first, end = next_rows(reader, reader.initialOffset())
    assert len(first) == 3, "the horizon stands before the open transaction"
    waiting, still = next_rows(reader, end)
    assert (waiting, still) == ([], end), "no news, no batch"
    await slow.commit()
    await system.beat(2)
    second, end = next_rows(reader, end)
    assert len(second) == 5, "now the other one holds what came after it"
    await dropped.rollback()
    third, end = next_rows(reader, end)
    assert len(third) == 9
    read = [row["id"] for row in (*first, *second, *third)]
    assert sorted(read) == sorted(map(str, await system.ids("switchboard.connector_heartbeat_log")))
    await late.close()
    await undone.close()


async def test_a_row_that_is_written_again_comes_again_and_leaves_the_batch_it_was_in(system: LakeSystem):
    reader = reader_of(system)
    await system.beat(10)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    before = rows_between(reader, start, end)
    await system.writer.execute(
        "UPDATE switchboard.connector_heartbeat_log SET state = 'error' WHERE messages_ingested <= 4"
    )
    again = rows_between(reader, start, end)  # as after a crash
    assert {row["id"] for row in again} < {row["id"] for row in before}
    assert len(again) == 6
    later, _ = next_rows(reader, end)
    assert [row["state"] for row in later] == ["error"] * 4
    assert min(row["change"] for row in later) >= end["change"] > max(row["change"] for row in before)


async def test_a_large_transaction_is_cut_by_its_keys_and_a_limit_is_kept(system: LakeSystem):
    reader = reader_of(system)
    await system.beat(120_000)
    for _ in range(3):
        await system.beat(10)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10))  # a transaction is not divided, so this one is the batch
    slices = reader.partitions(start, end)
    assert len(slices) > 1
    ids = [row["id"] for row in rows_between(reader, start, end)]
    assert len(ids) == len(set(ids)) >= 120_000
    rest, end = next_rows(reader, end)
    assert len(ids) + len(rest) == 120_030
    assert reader.partitions(end, end) == []


async def test_a_run_that_ends_reads_up_to_where_it_began(system: LakeSystem):
    reader = reader_of(system)
    await system.beat(2)
    reader.prepareForTriggerAvailableNow()
    await system.beat(5)
    first, end = next_rows(reader, reader.initialOffset(), reader.getDefaultReadLimit())
    assert len(first) == 2
    assert next_rows(reader, end, reader.getDefaultReadLimit()) == ([], end)


def test_a_batch_ends_at_a_mark_and_there_is_always_progress():
    marks = [Mark(end=10, rows=4), Mark(end=20, rows=4), Mark(end=30, rows=4)]
    assert [_end(marks, most, default=5) for most in (1, 4, 8, 11, 12, None)] == [10, 10, 20, 20, 30, 30]
    assert _end([], 3, default=5) == 5
    assert _slices(5, [Mark(end=10, rows=100), Mark(end=20, rows=150_000)]) == [
        Slice(start=5, end=10, part=0, parts=1),
        *(Slice(start=10, end=20, part=part, parts=3) for part in range(3)),
    ]


async def test_another_database_is_refused(system: LakeSystem):
    reader = reader_of(system)
    here = reader.initialOffset()
    with pytest.raises(ConfigurationError, match="older than what was read from it"):
        reader.latestOffset(here | {"change": 2**60}, ReadAllAvailable())
    with pytest.raises(ConfigurationError, match="another server"):
        reader.latestOffset(here | {"server": "7"}, ReadAllAvailable())


async def test_numbers_from_a_dump_of_another_server_are_noticed(system: LakeSystem):
    await system.beat(1)
    with connect(system.dsn, autocommit=True) as connection, connection.cursor() as cursor:
        check_numbers(cursor, HEARTBEATS.table)
        # As a restore does: no triggers.
        await system.writer.execute("ALTER TABLE switchboard.connector_heartbeat_log DISABLE TRIGGER USER")
        await system.writer.execute("UPDATE switchboard.connector_heartbeat_log SET changed_in = 1::bigint << 60")
        with pytest.raises(ConfigurationError, match="dump of another"):
            check_numbers(cursor, HEARTBEATS.table)


async def test_a_table_that_is_gone_is_an_error_without_values(system: LakeSystem):
    reader = reader_of(system)
    await system.writer.execute("DROP TABLE switchboard.connector_heartbeat_log")
    with pytest.raises(InternalError, match="SQLSTATE 42P01"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
async def test_the_server_notes_exactly_the_changes_that_the_lake_holds(system: LakeSystem, event: Event):
    """The trigger's columns are the event's; on later partitions too, with default and index."""
    found = await system.writer.fetchrow(_TRIGGER, f"{event.table.schema}.{event.table.name}")
    assert found is not None
    assert not found["columns"] or set(found["columns"]) == event.watched
    assert found["indexed"] == "brin"


async def test_a_partition_made_later_notes_changes_too(system: LakeSystem):
    may = add_months_from(NOON, 2)
    await ensure_month_partitions(system.writer, "switchboard", "connector_heartbeat_log", may.date(), 0)
    await system.beat(1, at=may)
    partition = "switchboard.connector_heartbeat_log_p202605"
    inserted = await system.writer.fetchval(f"SELECT changed_in FROM {partition}")
    await system.writer.execute(f"UPDATE {partition} SET state = 'error'")
    updated = await system.writer.fetchval(f"SELECT changed_in FROM {partition}")
    assert 0 < inserted < updated
    found = await system.writer.fetchrow(_TRIGGER, partition)
    assert found is not None
    assert found["indexed"] == "brin"


async def test_a_renewed_lease_is_no_change(system: LakeSystem):
    await system.accept()
    before = await system.writer.fetchval("SELECT changed_in FROM switchboard.message_inbox")
    await system.writer.execute("UPDATE switchboard.message_inbox SET lease_expires_at = now(), claimed_by = 'w'")
    assert await system.writer.fetchval("SELECT changed_in FROM switchboard.message_inbox") == before
    await system.writer.execute("UPDATE switchboard.message_inbox SET lifecycle_state = 'parsed'")
    assert await system.writer.fetchval("SELECT changed_in FROM switchboard.message_inbox") > before


async def test_rows_that_were_there_before_are_numbered_and_the_table_is_not_rewritten(
    postgres_server: EmbeddedPostgres, tmp_path: Path
):
    earlier = MigrationSet(schema="switchboard", directory=tmp_path, component="switchboard")
    for migration in MIGRATIONS[0].load()[:10]:
        (tmp_path / f"{migration.name}.sql").write_text(migration.text)
    async with cloned_database(postgres_server) as database:
        await migrate(database, [earlier])
        await database.execute(_OLD_ROUTE)
        files = await database.fetchval("SELECT pg_relation_filenode('switchboard.routing_log')")
        await migrate(database, [MIGRATIONS[0]])
        assert await database.fetchval("SELECT pg_relation_filenode('switchboard.routing_log')") == files
        numbers = await database.fetch("SELECT DISTINCT changed_in FROM switchboard.routing_log")
        assert len(numbers) == 1
        assert numbers[0]["changed_in"] > 0


_TRIGGER = """
SELECT (SELECT array_agg(attname::text) FROM pg_attribute
        WHERE attrelid = tgrelid AND attnum = ANY (tgattr::int2[])) AS columns,
       (SELECT amname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
        JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
        WHERE indrelid = tgrelid AND attname = 'changed_in') AS indexed
FROM pg_trigger WHERE tgrelid = $1::regclass AND tgname = 'note_change'
"""
_OLD_ROUTE = """
INSERT INTO switchboard.routing_log
    (id, request_id, segment_id, source_channel, target_butler, success, duration_ms, router, created_at)
SELECT gen_random_uuid(), gen_random_uuid(), 's1', 'telegram', 'finance', true, 5, 'local', now()
FROM generate_series(1, 1000)
"""
