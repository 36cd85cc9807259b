"""Bulk planning is the online service, recipient by recipient; and it refuses what it cannot read."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from benchmarks.planning import people
from benchmarks.planning.house import HORIZON, answers, read_plan, run_job, settle
from pyspark.sql import SparkSession

from butlers.errors import ValidationError
from butlers.outbound import MIGRATIONS
from butlers.outbound.service import MessageDeliveryService, SendResult
from butlers.outbound.store import OutboundStore
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri

_PEOPLE = 2_000
_NO_DATABASE = "postgresql://127.0.0.1:1/none"
_STRANGERS = ["zz stranger", "person-ß", "person-😀"]


async def _online(database: Database, message: str) -> SendResult:
    service = MessageDeliveryService(database=database, store=OutboundStore(database), horizon=HORIZON)
    return await service.send_message(message, now=people.NOW)


def _files(tmp_path: Path, message_id: str, throttling: dict[str, Any], recipients: list[str]) -> dict[str, str]:
    message, audience = tmp_path / f"{message_id}.json", tmp_path / f"{message_id}.csv"
    message.write_text(people.message(message_id, throttling=throttling))
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
        earlier = people.message(str(uuid4()), throttling=people.TIGHT, recipients=recipients[:500])
        await _online(database, earlier)
        before = await _queue(database)
        tight = str(uuid4())
        given = _files(tmp_path, tight, people.TIGHT, recipients)
        # On this thread: Spark finds a sink written in Python only where its session is the active one.
        result = run_job(spark, dsn, tmp_path, load="yes", **given)
        plan = read_plan(spark, result)
        loaded = await _queue(database) - before

        # When the queue is as it was before, the service comes to the same for everybody.
        await _forget(database, tight)
        online = await _online(database, people.message(tight, throttling=people.TIGHT, recipients=recipients))
        assert plan == answers(online)
        assert loaded == await _queue(database) - before

        # Whatever can happen to a recipient has happened.
        reasons = Counter(what for how, what, _ in plan.values() if how == "blocked")
        assert set(reasons) == {"no-channel", "sender-permission", "recipient-permission", "throttled"}
        assert {how for how, _, _ in plan.values()} == {"telegram", "email", "sms", "blocked"}
        assert len({what for how, what, _ in plan.values() if how != "blocked"}) > 60
        assert max(Counter(what[:16] for how, what, _ in plan.values() if how != "blocked").values()) == 30

        # Again, and after a worker has begun: the queue is left alone.
        await database.execute("UPDATE outbound.scheduled_messages SET state = 'acknowledged', attempts = 1")
        again = run_job(spark, dsn, tmp_path, load="yes", **given)
        assert (again.details["loaded"], again.details["loaded_blocked"]) == (0, 0)
        assert read_plan(spark, again) == plan
        assert await database.fetchval("SELECT count(*) FROM outbound.scheduled_messages WHERE state = 'queued'") == 0

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


def test_a_bad_audience_is_named_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    message = tmp_path / "message.json"
    message.write_text(people.message(str(uuid4()), throttling=people.UNLIMITED))
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
        "damaged": "cannot be read as what its name says (part-0",
    }.items():
        with pytest.raises(ValidationError) as caught:
            # The database is not even asked.
            run_job(spark, _NO_DATABASE, tmp_path, message=str(message), audience=str(tmp_path / name), load="yes")
        assert problem in caught.value.message, name
        assert f"{tmp_path / name}: " in caught.value.message

    assert not (tmp_path / "lake").exists()


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
        ({"message": "/nowhere.json"}, "cannot be read"),
    ],
)
def test_wrong_arguments_are_named(spark: SparkSession, tmp_path: Path, changes: dict[str, str], problem: str) -> None:
    given = _files(tmp_path, str(uuid4()), people.UNLIMITED, ["a"]) | changes

    with pytest.raises(ValidationError, match=problem):
        run_job(spark, _NO_DATABASE, tmp_path, **given)


def test_a_message_file_does_not_name_recipients(spark: SparkSession, tmp_path: Path) -> None:
    given = _files(tmp_path, str(uuid4()), people.UNLIMITED, ["a"])
    Path(given["message"]).write_text(people.message(str(uuid4()), throttling=people.UNLIMITED, recipients=["a"]))

    with pytest.raises(ValidationError, match="must not name recipient_ids"):
        run_job(spark, _NO_DATABASE, tmp_path, **given)
