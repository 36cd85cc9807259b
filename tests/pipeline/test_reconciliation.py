"""The books: nothing is said about a record in order, and every fault is found under its own name and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from butlers.pipeline.jobs.reconciliation import (
    SAMPLES,
    newest_moment,
    reconciliation_findings,
    reconciliation_totals,
    results,
    samples,
)
from butlers.pipeline.transforms.reconciliation import RULES, check_counts, rows_of
from tests.pipeline.reconciliation_records import (
    CLOSED,
    CUTOFF,
    FIRST,
    WINDOW,
    Ledger,
    Row,
    plant,
    plant_second_of_family,
    write_balanced,
)

pytestmark = pytest.mark.timeout(600)  # the first of them waits for one run of many stages

RUN = UUID(int=5)
BORN = {"routing": "created_at", "receipts": "received_at", "attempts": "started_at"}
ORACLE = Path(__file__).parent / "oracles" / "books.sql"

Finding = tuple[str, str]  # rule, key


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    ledger = Ledger()
    write_balanced(ledger, requests=300, seed=11)
    return ledger


@pytest.fixture(scope="module")
def planted(ledger: Ledger) -> set[Finding]:
    """The same record with one fault of every kind in it."""
    single = plant(ledger)
    assert single.keys() | {"lake-misses-rows", "lake-holds-more"} == RULES.keys()
    return {*single.items(), ("key-sent-twice", plant_second_of_family(ledger))}


@pytest.fixture(scope="module")
def tables(ledger: Ledger, planted: set[Finding]) -> dict[str, list[Row]]:
    """What the tables of the services hold of three events: a row more here, a row less there."""
    assert planted
    rows = {name: [_table_row(name, row) for row in ledger.rows[name] if _stands(name, row)] for name in BORN}
    rows["receipts"].append({"event": "receipts", "id": ledger.id_at(FIRST), "born": FIRST})
    rows["routing"].remove(min(rows["routing"], key=lambda row: row["id"]))
    return rows


def _table_row(name: str, row: Row) -> Row:
    return {"event": name, "id": row["id"], "born": row[BORN[name]]}


def _stands(name: str, row: Row) -> bool:
    """Written before the cutoff, and not a claim that was given back."""
    given_back = name == "attempts" and row["completed_at"] is None
    return FIRST <= row[BORN[name]] < min(WINDOW.end, CUTOFF) and not given_back


@pytest.fixture(scope="module")
def checked(spark: SparkSession, ledger: Ledger, tables: dict[str, list[Row]]) -> DataFrame:
    record = ledger.record(spark)
    parts = results(record, window=WINDOW, cutoff=CUTOFF, silent=["messenger", "switchboard"])
    for name, rows in tables.items():
        in_table = spark.createDataFrame([(row["id"], row["born"]) for row in rows], "id string, born timestamp")
        born, vanished = BORN[name], "completed_at IS NULL" if name == "attempts" else "false"
        frame = getattr(record, name).filter((sf.col(born) >= sf.lit(FIRST)) & (sf.col(born) < sf.lit(CUTOFF)))
        in_lake = rows_of(frame, key="id", born=born, vanished=vanished)
        parts = parts.unionByName(check_counts(name, rows_of(in_table, key="id", born="born"), in_lake))
    return parts.persist()


@pytest.fixture(scope="module")
def found(checked: DataFrame) -> list[Any]:
    return reconciliation_findings(checked, RUN).collect()


def test_every_planted_fault_is_found_under_its_own_name_and_nothing_else(
    found: list[Any], planted: set[Finding], tables: dict[str, list[Row]], ledger: Ledger
) -> None:
    gone = {row["id"] for row in ledger.rows["routing"] if _stands("routing", row)} - {
        row["id"] for row in tables["routing"]
    }
    day = next(row["created_at"].date() for row in ledger.rows["routing"] if row["id"] in gone)
    counted = {("lake-misses-rows", f"receipts {FIRST.date()}"), ("lake-holds-more", f"routing {day}")}
    assert {(row["rule"], row["key"]) for row in found} == planted | counted
    assert {row["rule"] for row in found} == RULES.keys()
    assert all(row["severity"] == RULES[row["rule"]].severity for row in found)


def test_it_says_the_same_as_an_oracle_of_its_own_making(
    found: list[Any], ledger: Ledger, tables: dict[str, list[Row]]
) -> None:
    said = sorted((row["rule"], row["key"], row["date"]) for row in found)
    assert said == sorted(_oracle(ledger, [row for rows in tables.values() for row in rows]))


def _oracle(ledger: Ledger, table_rows: list[Row]) -> list[tuple[Any, ...]]:
    import pyarrow

    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        for name, rows in (ledger.rows | {"table_rows": table_rows}).items():
            database.register(name, pyarrow.Table.from_pylist(rows))
        for name, moment in {"window_start": WINDOW.start, "window_end": WINDOW.end, "cutoff": CUTOFF}.items():
            database.execute(f"CREATE MACRO {name}() AS TIMESTAMPTZ '{moment.isoformat()}'")
        return database.execute(ORACLE.read_text()).fetchall()


def test_the_totals_tell_what_was_looked_at_and_what_is_too_young(checked: DataFrame, found: list[Any]) -> None:
    totals = reconciliation_totals(checked, RUN).collect()
    broken = {rule: sum(row["broken"] for row in totals if row["rule"] == rule) for rule in RULES}
    assert broken == {rule: sum(row["rule"] == rule for row in found) for rule in RULES}
    by_rule = {rule: [row for row in totals if row["rule"] == rule] for rule in RULES}
    assert all(sum(row["checked"] for row in rows) > 0 for rows in by_rule.values())
    young = {rule for rule, rows in by_rule.items() if sum(row["young"] for row in rows)}
    assert {"request-left-open", "dispatch-unlogged", "answer-missing", "delivered-unreceipted"} <= young
    assert {"attempt-orphan", "receipt-orphan", "routing-orphan", "delivery-overdue", "attempt-left-open"} <= young


def test_a_few_keys_of_each_broken_rule_are_named(checked: DataFrame, planted: set[Finding]) -> None:
    named = {row["rule"]: row["keys"] for row in samples(reconciliation_findings(checked, RUN)).collect()}
    assert named.keys() == RULES.keys()
    assert all(1 <= len(keys) <= SAMPLES for keys in named.values())
    assert sorted(named["key-sent-twice"]) == sorted(key for rule, key in planted if rule == "key-sent-twice")


def test_the_record_reaches_as_far_as_its_newest_moment(spark: SparkSession, ledger: Ledger) -> None:
    [row] = newest_moment(ledger.record(spark)).select(sf.unix_micros("moment").alias("micros")).collect()
    assert row["micros"] == CLOSED.timestamp() * 1e6
