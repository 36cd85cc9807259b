"""Reading PostgreSQL on executors: one snapshot, only what is asked for, and the right rows of every type."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from uuid import UUID

import pytest
from adbc_driver_manager.dbapi import Cursor
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    Not,
    StringContains,
)

from butlers.errors import ConfigurationError, InternalError
from butlers.pipeline.connection import connect
from butlers.pipeline.job import Window
from butlers.pipeline.sources.postgres import range_conditions, read_table, snapshots
from butlers.pipeline.sources.predicates import filter_condition, literal, real_columns, window_condition
from butlers.pipeline.tables import Table, columns
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri

START = datetime(2026, 3, 1, tzinfo=UTC)
ROWS = 1_000
SAMPLES = Table(
    schema="public",
    name="samples",
    columns=columns("""
        id string, number bigint, small int, at timestamp, day date, ratio double, share decimal(5,2), words string,
        document string, change bigint, good boolean
    """),
    key=("id",),
    time="at",
)
_CREATE = """
CREATE TABLE samples (id uuid PRIMARY KEY, number bigint, small integer, at timestamptz, day date,
    ratio double precision, share numeric(5,2), words text,
    document jsonb, change xid8, good boolean)
"""
_FILL = f"""
INSERT INTO samples
SELECT lpad(to_hex(n), 32, '0')::uuid, n, n % 7, '{START.isoformat()}'::timestamptz + n * interval '1 minute',
    '2026-03-01'::date + (n / 1440)::int, n / 4.0, n / 100.0,
    CASE WHEN n % 10 = 0 THEN NULL WHEN n % 2 = 0 THEN 'Äpfel''n' ELSE 'b' || n END,
    jsonb_build_object('n', n), '9000000000'::xid8, n % 3 = 0
FROM generate_series(0, {ROWS - 1}) AS n
"""


@pytest.fixture
async def dsn(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    async with cloned_database_uri(postgres_server) as uri:
        _run(uri, _CREATE, _FILL)
        yield uri


def _run(dsn: str, *statements: str) -> None:
    with connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_every_type_arrives_as_the_contract_says(spark: SparkSession, dsn: str):
    row = read_table(spark, dsn, SAMPLES).where("number = 43").collect()[0]
    assert row.asDict() == {
        "id": str(UUID(int=43)),
        "number": 43,
        "small": 1,
        "at": (START + timedelta(minutes=43)).replace(tzinfo=None),
        "day": date(2026, 3, 1),
        "ratio": 10.75,
        "share": Decimal("0.43"),
        "words": "b43",
        "document": '{"n": 43}',
        "change": 9_000_000_000,
        "good": False,
    }


def test_all_partitions_and_all_executions_see_one_snapshot(spark: SparkSession, dsn: str):
    with snapshots():
        frame = read_table(spark, dsn, SAMPLES, columns=["number", "at"], partitions=4)
        assert frame.rdd.getNumPartitions() == 4
        # Committed after the frame was made and before any of its tasks: a row in every range, and one gone from each.
        _run(dsn, "UPDATE samples SET number = number + 1000000", "DELETE FROM samples WHERE small = 0", _FILL_MORE)
        first = frame.agg(f.count("*"), f.sum("number")).collect()[0]
        _run(dsn, "DELETE FROM samples")
        again = frame.agg(f.count("*"), f.sum("number")).collect()[0]
        assert tuple(first) == tuple(again) == (ROWS, ROWS * (ROWS - 1) // 2)
        assert read_table(spark, dsn, SAMPLES).count() == 0
        assert _open_snapshots(dsn) == 2
    assert _open_snapshots(dsn) == 0
    with pytest.raises(Exception, match="the server refuses it"):
        frame.count()


_FILL_MORE = "INSERT INTO samples (id, at, number) SELECT gen_random_uuid(), at, 5 FROM samples"


def _open_snapshots(dsn: str) -> int:
    with connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
        )
        (count,) = cursor.fetchone() or (None,)
        return int(count)


CASES: list[tuple[str, list[Filter], int]] = [
    ("number in (1, 2, 999) and small <> 2", [In(("number",), (1, 2, 999)), Not(EqualTo(("small",), 2))], 2),
    (
        "at >= timestamp'2026-03-01 08:20:00' and day = date'2026-03-01' and ratio < 130.5",
        [
            GreaterThanOrEqual(("at",), START + timedelta(minutes=500)),
            EqualTo(("day",), date(2026, 3, 1)),
            LessThan(("ratio",), 130.5),
        ],
        22,
    ),
    ("words is null and good", [IsNull(("words",)), EqualTo(("good",), True)], 34),
    ("words = 'Äpfel\\'n'", [EqualTo(("words",), "Äpfel'n")], 400),
    ("words > 'b5' and not good", [GreaterThan(("words",), "b5"), Not(EqualTo(("good",), True))], 450),
    (f"id = '{UUID(int=4)}'", [EqualTo(("id",), str(UUID(int=4)))], 1),
]


def test_filters_on_the_server_keep_the_rows_that_spark_would_keep(spark: SparkSession, dsn: str):
    frame = read_table(spark, dsn, SAMPLES, partitions=2)
    [in_spark] = frame.agg(*(f.count_if(f.expr(condition)) for condition, _, _ in CASES)).collect()
    with connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        types = real_columns(cursor, SAMPLES)
        on_server = [_number(cursor, _count_of(where, types)) for _, where, _ in CASES]
    assert [*in_spark] == on_server == [rows for _, _, rows in CASES]
    _, where, rows = CASES[0]
    assert read_table(spark, dsn, SAMPLES, columns=["id"], where=where).count() == rows
    plan = frame.where("number = 7")._jdf.queryExecution().toString()
    assert "s3cret" not in plan and dsn not in plan
    with pytest.raises(InternalError, match="filter in Spark"):
        read_table(spark, dsn, SAMPLES, where=[StringContains(("words",), "x")])


def _count_of(where: list[Filter], types: Mapping[str, str]) -> str:
    conditions = [filter_condition(one, types) for one in where]
    return f"SELECT count(*) FROM samples WHERE {' AND '.join(f'({text})' for text in conditions)}"


def _number(cursor: Cursor, query: str) -> int:
    cursor.execute(query)
    return int((cursor.fetchone() or (0,))[0])


def test_a_window_is_half_open_and_wrong_wishes_are_named(spark: SparkSession, dsn: str):
    window = Window(start=START + timedelta(minutes=10), end=START + timedelta(minutes=20))
    numbers = read_table(spark, dsn, SAMPLES, columns=["number"], window=window, partitions=3).collect()
    assert sorted(row["number"] for row in numbers) == list(range(10, 20))
    timeless = Table(schema="public", name="samples", columns=columns("number bigint"), key=("number",))
    with pytest.raises(InternalError, match="has no time column"):
        read_table(spark, dsn, timeless, window=window)
    with pytest.raises(InternalError, match=r"no column colour"):
        read_table(spark, dsn, SAMPLES, columns=["colour"])
    with pytest.raises(ConfigurationError, match="no such table"):
        read_table(spark, dsn, replace(SAMPLES, schema="elsewhere"))


@pytest.mark.parametrize(
    ("table", "ranges"),
    [
        (SAMPLES, 5),
        (Table(schema="public", name="samples", columns=columns("id string"), key=("id",)), 5),
        (Table(schema="public", name="samples", columns=columns("small int"), key=("small",)), 5),
        (Table(schema="public", name="samples", columns=columns("day date"), key=("day",)), 1),
        (Table(schema="public", name="samples", columns=columns("words string"), key=("words",)), 1),
    ],
)
def test_ranges_are_the_whole_table_each_row_once(dsn: str, table: Table, ranges: int):
    _run(dsn, "INSERT INTO samples (id) VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff')")
    with connect(dsn) as connection, connection.cursor() as cursor:
        kinds = {"id": "uuid", "small": "integer", "day": "date", "words": "text", "at": "timestamp with time zone"}
        conditions = range_conditions(cursor, table, kinds, where="true", requested=5)
        assert len(conditions) == ranges
        counts = []
        for condition in conditions:
            cursor.execute(f"SELECT count(*) FROM samples WHERE {condition}")
            counts.append((cursor.fetchone() or (0,))[0])
        assert sum(counts) == ROWS + 1
        assert range_conditions(cursor, table, kinds, where="true", requested=None) == ["true"]
        assert range_conditions(cursor, table, kinds, where="false", requested=5) == ["true"]


TYPES = {"a": "bigint", "t": "text", "u": "uuid", "j": "jsonb", "m": "timestamp with time zone", "d": "date"}


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (EqualTo(("a",), 1), '"a" = (1)'),
        (Not(EqualTo(("a",), -1)), 'NOT ("a" = (-1))'),
        (LessThan(("t",), "o'b"), "\"t\" COLLATE \"C\" < 'o''b'"),
        (EqualTo(("t",), "\\"), "\"t\" = '\\'"),
        (In(("a",), (1, 2)), '"a" IN ((1), (2))'),
        (IsNull(("j",)), '"j" IS NULL'),
        (GreaterThanOrEqual(("m",), START), "\"m\" >= '2026-03-01T00:00:00+00:00'::timestamptz"),
        (EqualTo(("d",), date(2024, 2, 29)), "\"d\" = '2024-02-29'::date"),
        (EqualTo(("u",), str(UUID(int=1))), f"\"u\" = '{UUID(int=1)}'::uuid"),
        (EqualTo(("u",), str(UUID(int=10)).upper()), None),
        (GreaterThan(("u",), str(UUID(int=1))), None),
        (EqualTo(("j",), "{}"), None),
        (EqualTo(("t",), "\0"), None),
        (EqualTo(("a",), True), None),
        (EqualTo(("d",), START), None),
        (In(("a",), (1, None)), None),
        (Not(In(("a",), ("x",))), None),
        (EqualTo(("a", "b"), 1), None),
        (EqualTo(("unknown",), 1), None),
        (StringContains(("t",), "x"), None),
    ],
)
def test_what_means_the_same_on_the_server_is_pushed_down(condition: Filter, text: str | None):
    assert filter_condition(condition, TYPES) == text


def test_a_day_belongs_to_the_window_of_its_first_moment():
    noon = START + timedelta(hours=12)
    whole = [
        window_condition("d", "date", Window(start=a, end=b)) for a, b in pairwise([START, noon, noon + timedelta(1)])
    ]
    assert whole == [
        "\"d\" >= '2026-03-01'::date AND \"d\" < '2026-03-02'::date",
        "\"d\" >= '2026-03-02'::date AND \"d\" < '2026-03-03'::date",
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"x", [1], None])
def test_a_value_without_a_safe_form_is_not_written(value: object):
    assert literal(value) is None
