"""Bulk planning is the online service, recipient by recipient; and it refuses what it cannot read."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from benchmarks.planning import people
from benchmarks.planning.recipients import (
    AT_THAT_TIME,
    HORIZON,
    OnlineService,
    answers,
    read_plan,
    run_job,
    run_within,
    settle,
)
from pyspark.sql import DataFrame, SparkSession

from butlers.errors import InternalError, ValidationError
from butlers.outbound import MIGRATIONS
from butlers.outbound.documents import MessageDocument
from butlers.outbound.postgres_records import PostgresRecords
from butlers.outbound.service import SendResult
from butlers.outbound.values import Message, Outcome
from butlers.pipeline.job import Window
from butlers.pipeline.sinks.plans import add_rows, turn_to_load, write_plan
from butlers.pipeline.sources.audience import count_audience, read_audience
from butlers.pipeline.tables.deliveries import BLOCKED_RECIPIENTS, SCHEDULED_MESSAGES
from butlers.storage.database import Database, Executor
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri

_PEOPLE = 2_000
_NO_DATABASE = "postgresql://127.0.0.1:1/none"
_A_MINUTE = people.UNLIMITED | {"max_per_minute": 60}
_STRANGERS = ["zz stranger", "person-ß", "person-😀"]


async def _online(database: Database, message: str) -> SendResult:
    return await OnlineService(database=database).send(message)


def _files(tmp_path: Path, message_id: str, pacing: dict[str, Any], recipients: list[str]) -> dict[str, str]:
    message, audience = tmp_path / f"{message_id}.json", tmp_path / f"{message_id}.csv"
    message.write_text(people.message(message_id, pacing=pacing))
    audience.write_text("\n".join(["name,recipient_id", *(f"x,{one}" for one in recipients)]))
    return {"message": str(message), "audience": str(audience)}


@pytest.mark.heavy
@pytest.mark.timeout(600)
async def test_the_plan_is_the_online_services_and_is_loaded_once(
    spark: SparkSession, postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    recipients = [people.person_id(number) for number in range(_PEOPLE)] + _STRANGERS
    random.Random(5).shuffle(recipients)
    async with cloned_database_uri(postgres_server, [MIGRATIONS]) as dsn, await Database.connect(dsn) as database:
        await settle(database, range(_PEOPLE))

        # Given limits that bind, and a sender who has sent before.
        earlier = people.message(str(uuid4()), pacing=people.TIGHT, recipients=recipients[:500])
        await _online(database, earlier)
        before = await _queue(database)
        tight = str(uuid4())
        given = _files(tmp_path, tight, people.TIGHT, recipients)
        # On this thread: Spark finds a sink written in Python only where its session is the active one.
        result = run_job(spark, dsn, tmp_path, **AT_THAT_TIME, **given)
        plan = read_plan(spark, result)
        loaded = await _queue(database) - before

        # When the queue is as it was before, the service comes to the same for everybody.
        await _forget(database, tight)
        online = await _online(database, people.message(tight, pacing=people.TIGHT, recipients=recipients))
        assert plan == answers(online)
        assert loaded == await _queue(database) - before

        # Whatever can happen to a recipient has happened.
        reasons = Counter(what for how, what, _ in plan.values() if how == "blocked")
        assert set(reasons) == {"no-channel", "sender-permission", "recipient-permission", "throttled"}
        assert {how for how, _, _ in plan.values()} == {"telegram", "email", "sms", "blocked"}
        assert len({what for how, what, _ in plan.values() if how != "blocked"}) > 60
        assert max(Counter(what[:16] for how, what, _ in plan.values() if how != "blocked").values()) == 30

        # Again, and after a worker has begun: the queue is left alone.
        await database.execute("UPDATE outbound.scheduled_messages SET state = 'delivered', attempts = 1")
        again = run_job(spark, dsn, tmp_path, **AT_THAT_TIME, **given)
        assert (again.details["loaded"], again.details["loaded_blocked"]) == (0, 0)
        assert read_plan(spark, again) == plan
        assert await database.fetchval("SELECT count(*) FROM outbound.scheduled_messages WHERE state = 'planned'") == 0

        # An id is one message's.
        other = json.loads(Path(given["message"]).read_text()) | {"body": "Something else"}
        Path(given["message"]).write_text(json.dumps(other))
        with pytest.raises(ValidationError, match="used for another message"):
            run_job(spark, dsn, tmp_path, **given)


async def _queue(database: Database) -> Counter[tuple[Any, ...]]:
    rows = await database.fetch(
        "SELECT dedupe_key, recipient_id, sender_id, channel, scheduled_at::text, priority, created_at, '' "
        "FROM outbound.scheduled_messages UNION ALL "
        "SELECT message_id::text, recipient_id, '', '', '', reason, created_at, detail FROM outbound.blocked_recipients"
    )
    return Counter(tuple(row) for row in rows)


async def _forget(database: Database, message_id: str) -> None:
    for table, column in (
        ("messages", "id"),
        ("scheduled_messages", "message_id"),
        ("blocked_recipients", "message_id"),
    ):
        await database.execute(f"DELETE FROM outbound.{table} WHERE {column} = $1", message_id)


@pytest.fixture
async def dsn(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    """A database in which the sender may write to a1..a60 and b1..b60."""
    async with cloned_database_uri(postgres_server, [MIGRATIONS]) as dsn, await Database.connect(dsn) as database:
        await settle(database, ())
        await database.execute(
            "INSERT INTO outbound.entitlements (subject_id, permission, granted_at)"
            " SELECT letter || n, 'messages:receive:*', $1"
            " FROM unnest(ARRAY['a', 'b']) AS letter, generate_series(1, 60) AS n",
            people.NOW,
        )
        yield dsn


def _people(letter: str) -> list[str]:
    return [f"{letter}{number}" for number in range(1, 61)]


@pytest.mark.timeout(600)
async def test_an_audience_that_grows_is_planned_as_the_service_does_it(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    first, everybody, message_id = _people("b"), _people("a") + _people("b"), str(uuid4())
    async with await Database.connect(dsn) as database:
        # Given 60 who fill the first minute, of whom one may no longer be written to.
        loaded = run_job(spark, dsn, tmp_path, **AT_THAT_TIME, **_files(tmp_path, message_id, _A_MINUTE, first))
        before, queue = read_plan(spark, loaded), await _queue(database)
        await database.execute("DELETE FROM outbound.entitlements WHERE subject_id = 'b7'")

        # When 60 more are added, whose ids come first.
        grown = run_job(spark, dsn, tmp_path, **AT_THAT_TIME, **_files(tmp_path, message_id, _A_MINUTE, everybody))
        plan, added = read_plan(spark, grown), await _queue(database) - queue

        # Then nobody's decision has changed, no minute has more than it may have, and the service says the same.
        assert len(before) == grown.details["loaded"] == 60
        assert before.items() <= plan.items()
        assert set(Counter(what[:16] for _, what, _ in plan.values()).values()) == {60}
        await database.execute("DELETE FROM outbound.scheduled_messages WHERE recipient_id LIKE 'a%'")
        online = await _online(database, people.message(message_id, pacing=_A_MINUTE, recipients=everybody))
        assert plan == answers(online)
        assert added == await _queue(database) - queue


_IS_WAITED_FOR = """
SELECT EXISTS (SELECT FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
    WHERE locktype = 'advisory' AND NOT granted AND datname = current_database())
"""


class _Hesitant(PostgresRecords):
    """Has decided, and waits with storing it until somebody waits for its turn."""

    decided = threading.Event()

    async def _keep_outcomes(
        self, connection: Executor, document: MessageDocument, outcomes: Sequence[Outcome], now: datetime
    ) -> None:
        self.decided.set()
        async with asyncio.timeout(240):  # the first work of a Spark on a busy machine
            while not await connection.fetchval(_IS_WAITED_FOR):
                await asyncio.sleep(0.05)
        await super()._keep_outcomes(connection, document, outcomes, now)


@pytest.mark.timeout(600)
async def test_a_load_waits_for_whoever_decides_for_the_message(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    message_id, later = str(uuid4()), people.NOW + timedelta(hours=1)

    async def online() -> SendResult:
        message = people.message(message_id, pacing=_A_MINUTE, recipients=["b1"])
        async with await Database.connect(dsn) as database:
            return await OnlineService(database=database, records=_Hesitant).send(message, now=later)

    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(asyncio.run, online())
        assert _Hesitant.decided.wait(30)
        loaded = run_job(spark, dsn, tmp_path, **AT_THAT_TIME, **_files(tmp_path, message_id, _A_MINUTE, ["b1", "b2"]))

    plan = read_plan(spark, loaded)
    assert answers(call.result()).items() <= plan.items()
    assert (plan["b1"][1][11:13], plan["b2"][1][11:13]) == ("23", "22")
    assert loaded.details["loaded"] == 1


def _scheduled(spark: SparkSession, *recipients: str, at: datetime) -> DataFrame:
    rows = [
        (f"{UUID(int=1)}:{one}", str(UUID(int=1)), one, "s", "email", at, "normal", people.NOW) for one in recipients
    ]
    return spark.createDataFrame(rows, SCHEDULED_MESSAGES.columns)


def _blocked(spark: SparkSession, reason: str) -> DataFrame:
    row = (str(UUID(int=1)), "cid", reason, "", people.NOW)
    return spark.createDataFrame([row], BLOCKED_RECIPIENTS.columns)


@pytest.mark.timeout(600)
async def test_a_load_changes_no_row_and_is_whole_or_nothing(spark: SparkSession, dsn: str) -> None:
    message, later = Message(id=UUID(int=1), sender_id="s", event="message"), people.NOW + timedelta(days=1)

    def load(scheduled: DataFrame, blocked: DataFrame) -> tuple[int, ...]:
        rows = ((SCHEDULED_MESSAGES, scheduled), (BLOCKED_RECIPIENTS, blocked))
        with turn_to_load(dsn, message) as turn:
            return add_rows(turn, dsn, rows, run_id=uuid4())

    async with await Database.connect(dsn) as database:
        with pytest.raises(InternalError, match="loading the plan"):
            load(_scheduled(spark, "ann", at=people.NOW), _blocked(spark, "no such reason"))
        assert not await _queue(database)

        assert load(_scheduled(spark, "ann", at=people.NOW), _blocked(spark, "throttled")) == (1, 1)
        await database.execute("UPDATE outbound.scheduled_messages SET state = 'sending', attempts = 1")
        before = await _queue(database)
        assert load(_scheduled(spark, "ann", "bob", at=later), _blocked(spark, "no-channel")) == (1, 0)
        [(_, who, *_)] = await _queue(database) - before
        assert who == "bob"
        assert await database.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'pipeline_staging'") == 0


@pytest.mark.timeout(600)
async def test_a_load_goes_by_the_databases_clock(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    given = _files(tmp_path, str(uuid4()), _A_MINUTE, ["a1"])
    async with await Database.connect(dsn) as database:
        clock: datetime = await database.fetchval("SELECT now()")
        recent = Window(start=clock - timedelta(days=1), end=clock + HORIZON)
        for window, now, problem in (
            (recent, clock - timedelta(minutes=10), "now: lies in the past, by the database's clock"),
            (Window(start=clock - HORIZON, end=clock), None, "now: --to lies in the past"),
        ):
            said = {"now": now.isoformat()} if now else {}
            with pytest.raises(ValidationError, match=problem):
                run_within(window, spark, dsn, tmp_path, load="yes", **said, **given)
        assert not await _queue(database)
        assert not (tmp_path / "lake").exists()

        run_within(recent, spark, dsn, tmp_path, load="yes", **given)
        assert await database.fetchval("SELECT min(scheduled_at) >= $1 FROM outbound.scheduled_messages", clock)


def test_a_plan_is_replaced_as_a_whole(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(people: int) -> DataFrame:
        return spark.range(people).selectExpr("'x' AS message_id", "id AS recipient_id")

    place = write_plan(plan(3), tmp_path, UUID(int=1))
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if "_draft" in self.name:
            raise OSError("no space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(InternalError, match="the plan cannot be put here"):
        write_plan(plan(5), tmp_path, UUID(int=1))
    assert spark.read.parquet(str(place)).count() == 3
    monkeypatch.undo()

    assert write_plan(plan(2), tmp_path, UUID(int=1)) == place == tmp_path / f"message_id={UUID(int=1)}"
    assert spark.read.parquet(str(place)).count() == 2
    assert list(tmp_path.iterdir()) == [place]


def test_a_bad_audience_is_named_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    message = tmp_path / "message.json"
    message.write_text(people.message(str(uuid4()), pacing=people.UNLIMITED))
    files = {
        "no_column.csv": b"id,name\n1,x\n",
        "twice.csv": b"recipient_id\na\nb\na\n",
        "blank.csv": b"recipient_id,x\na,1\n ,2\n",
        "nobody.csv": b"recipient_id\n",
        "missing.jsonl": b'{"recipient_id": "a"}\n{"id": "b"}\n',
        "broken.jsonl": b'{"recipient_id": "a"}\n{"recipient_id": \n',
        "corrupt.parquet": b"PAR1 this is not one PAR1",
        "short.parquet": b"",
        "list.xlsx": b"x",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    spark.range(3).selectExpr("struct(id) AS recipient_id").write.parquet(str(tmp_path / "structs.parquet"))
    spark.range(3).selectExpr("CAST(id AS STRING) AS recipient_id").write.parquet(str(tmp_path / "mixed"))
    (tmp_path / "mixed" / "other.csv").write_text("recipient_id\n1\n")
    _damaged_parquet(spark, tmp_path / "damaged")
    (tmp_path / "orders").mkdir()
    # Spark takes the header of the larger file.
    (tmp_path / "orders" / "a.csv").write_text("recipient_id,email\nann,ann@example.org\ncid,cid@example.org\n")
    (tmp_path / "orders" / "b.csv").write_text("email,recipient_id\nbob@example.org,bob\n")

    for name, problem in {
        "no_column.csv": "there is no column recipient_id",
        "twice.csv": "1 recipients are named more than once, a for one",
        "blank.csv": "recipient_id is missing, empty or too long in 1 rows",
        "nobody.csv": "names nobody",
        "missing.jsonl": "recipient_id is missing, empty or too long in 1 rows",
        "broken.jsonl": "cannot be read as what its name says (broken.jsonl)",
        "corrupt.parquet": "cannot be read as what its name says",
        "short.parquet": "cannot be read as what its name says",
        "list.xlsx": "must be .csv, .jsonl or .parquet",
        "mixed": "must be .csv, .jsonl or .parquet",
        "structs.parquet": "the column recipient_id is struct",
        "nothing.csv": "there is no such file or folder",
        "orders": "recipient_id is not in the same place in the header of every file (b.csv)",
        "damaged": "cannot be read as what its name says (part-0",
    }.items():
        with pytest.raises(ValidationError) as caught:
            # The database is not even asked.
            run_job(spark, _NO_DATABASE, tmp_path, message=str(message), audience=str(tmp_path / name), load="yes")
        assert problem in caught.value.message, name
        assert f"{tmp_path / name}: " in caught.value.message

    assert not (tmp_path / "lake").exists()


def test_a_folder_of_csv_files_need_only_agree_on_where_the_id_is(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("recipient_id,email,email\nann,x,y\n")
    (tmp_path / "b.csv").write_text("recipient_id,name,city\nbob,x,y\n")

    audience = read_audience(spark, str(tmp_path))

    assert count_audience(audience, str(tmp_path)) == 2
    assert {row["recipient_id"] for row in audience.collect()} == {"ann", "bob"}


def _damaged_parquet(spark: SparkSession, folder: Path) -> None:
    """A folder in which the data of one file is damaged and its footer is not."""
    spark.range(1_000).selectExpr("uuid() AS recipient_id").coalesce(1).write.parquet(str(folder))
    [file] = folder.glob("*.parquet")
    content = bytearray(file.read_bytes())
    content[100:2_000] = bytes(1_900)
    file.write_bytes(content)
    for checksum in folder.glob(".*.crc"):
        checksum.unlink()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"message": ""}, "message: is missing"),
        ({"audience": ""}, "audience: is missing"),
        ({"now": "tomorrow"}, "now: must be an RFC 3339 timestamp"),
        ({"now": "2026-03-28T23:00:00"}, "now: must carry a UTC offset"),
        ({"now": (people.NOW + HORIZON + timedelta(days=1)).isoformat()}, "now: must lie between"),
        ({"load": "perhaps"}, "load: must be yes or no"),
        ({"past": "perhaps"}, "past: must be yes or no"),
        ({"message": "/nowhere.json"}, "cannot be read"),
    ],
)
def test_wrong_arguments_are_named(spark: SparkSession, tmp_path: Path, changes: dict[str, str], problem: str) -> None:
    given = _files(tmp_path, str(uuid4()), people.UNLIMITED, ["a"]) | changes

    with pytest.raises(ValidationError, match=problem):
        run_job(spark, _NO_DATABASE, tmp_path, **given)


def test_a_message_file_does_not_name_recipients(spark: SparkSession, tmp_path: Path) -> None:
    given = _files(tmp_path, str(uuid4()), people.UNLIMITED, ["a"])
    Path(given["message"]).write_text(people.message(str(uuid4()), pacing=people.UNLIMITED, recipients=["a"]))

    with pytest.raises(ValidationError, match="must not name recipient_ids"):
        run_job(spark, _NO_DATABASE, tmp_path, **given)
