"""Heartbeats of fleets that never were, of any size, made on Spark itself and the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from uuid import UUID

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from butlers.contracts.envelope import invalid
from butlers.pipeline.connection import transaction
from butlers.pipeline.lake.events import CHANGE, DATE, HEARTBEATS
from butlers.pipeline.lake.files import publish, stage
from butlers.pipeline.lake.log import Commit, LakeLog
from butlers.pipeline.lake.reading import GENERATED
from butlers.pipeline.sinks.merge import merge_into
from butlers.pipeline.tables import CONNECTOR_HEARTBEAT_LOG, Table
from butlers.pipeline.transforms.connector_stats import with_deltas
from butlers.storage.queries import quote_identifier
from butlers.storage.retention import add_months

DAY_S = 86_400
CONNECTOR_TYPES = ("imap", "telegram", "http", "mcp")
# Heartbeats of a connector in a day, on average: what a fleet of some size amounts to.
USUAL_BEATS_A_DAY = 1_100
_ROWS_A_TASK = 400_000
_BEATS_DOUBLED = 200
_SILENT_BEATS = 50
_UUID_PARTS = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
# The most that a counter grows by from one heartbeat to the next is less than twice this.
_STRIDES = {
    "messages_ingested": 7,
    "messages_failed": 1,
    "source_api_calls": 17,
    "checkpoint_saves": 2,
    "dedupe_accepted": 6,
}
_MICROS = 1_000_000
_LONGEST_SILENCE = timedelta(hours=6)
_LATEST = timedelta(minutes=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    connectors: int
    start: date  # in UTC
    days: int
    seed: int = 0

    @property
    def dates(self) -> list[date]:
        return [self.start + timedelta(days=number) for number in range(self.days)]

    @property
    def about_rows(self) -> int:
        return self.connectors * self.days * USUAL_BEATS_A_DAY


def heartbeats(spark: SparkSession, plan: FleetPlan, day: date) -> DataFrame:
    """What the fleet sent on one day; some of it arrives on the next one."""
    tasks = max(2, plan.connectors * USUAL_BEATS_A_DAY // _ROWS_A_TASK)
    number = (day - plan.start).days
    connectors = spark.range(0, plan.connectors, 1, tasks).select(sf.col("id").alias("connector"))
    return _contract(_reported(_lived(_beats(connectors, plan, number), plan), plan), plan)


def logged_heartbeats(spark: SparkSession, plan: FleetPlan, day: date) -> DataFrame:
    """The same with what each one added, as the intake would have stored it: compared with those of around the day."""
    midnight = datetime.combine(day, time(), UTC)
    of_day = sf.col("of_day")
    around = heartbeats(spark, plan, day).withColumn("of_day", sf.lit(True))
    if day != plan.start:
        earlier = sf.col("received_at") >= sf.lit(midnight - _LONGEST_SILENCE)
        before = heartbeats(spark, plan, day - timedelta(days=1)).where(earlier)
        around = around.unionByName(before.withColumn("of_day", sf.lit(False)))
    if day != plan.dates[-1]:
        soon = sf.col("received_at") < sf.lit(midnight + timedelta(days=1) + _LATEST)
        after = heartbeats(spark, plan, day + timedelta(days=1)).where(soon)
        around = around.unionByName(after.withColumn("of_day", sf.lit(False)))
    return with_deltas(around).where(of_day).drop("of_day")


def _beats(connectors: DataFrame, plan: FleetPlan, day: int) -> DataFrame:
    """A row for each heartbeat of the day, and one more for each that is delivered twice."""
    size = _dice(plan, "size", "connector", sides=100)
    interval = sf.when(size == 0, 5).when(size <= 10, 30).otherwise(120).cast("long")
    in_a_day = sf.lit(DAY_S) / sf.col("interval_s")
    sized = connectors.select("connector", interval.alias("interval_s")).withColumn("in_a_day", in_a_day.cast("long"))
    numbers = sf.sequence(sf.lit(0).cast("long"), (sf.col("in_a_day") * (1 + 1 / _BEATS_DOUBLED)).cast("long") - 1)
    again = _dice(plan, "again", "connector", "n", sides=DAY_S) % sf.col("in_a_day")
    beat = sf.when(sf.col("n") < sf.col("in_a_day"), sf.col("n")).otherwise(again) + sf.lit(day) * sf.col("in_a_day")
    return sized.select("*", sf.explode(numbers).alias("n")).withColumn("beat", beat)


def _lived(beats: DataFrame, plan: FleetPlan) -> DataFrame:
    """Which life of its connector a beat belongs to, and how many beats of that life came before it."""
    length = 200 + _dice(plan, "length", "connector", sides=1_800)
    counted = sf.col("beat") + _dice(plan, "offset", "connector", sides=2_000)
    lives = beats.withColumn("length", length).withColumn("counted", counted)
    lives = lives.withColumn("life", sf.floor(sf.col("counted") / sf.col("length")))
    anew = (sf.col("life") % 2 == 1) & (_dice(plan, "anew", "connector", "life", sides=2) == 0)
    fell = _dice(plan, "fell", "connector", "life", sides=8) == 0
    return lives.select(
        "*",
        (sf.col("counted") % sf.col("length")).alias("lived"),
        sf.when(anew, sf.col("life") - 1).otherwise(sf.col("life")).alias("name"),
        sf.when(fell, sf.floor(sf.col("length") / 3)).otherwise(sf.lit(0)).alias("falls_at"),
    ).where(_arrives(plan))


def _arrives(plan: FleetPlan) -> Column:
    silent = sf.floor(sf.col("beat") / _SILENT_BEATS)
    sending = sf.pmod(sf.xxhash64(sf.lit(plan.seed), sf.lit("silent"), "connector", silent), sf.lit(40)) != 0
    return sending & (_dice(plan, "lost", "connector", "beat", sides=100) != 0)


def _reported(lives: DataFrame, plan: FleetPlan) -> DataFrame:
    """What each heartbeat says, and when it comes."""
    beat_us = sf.col("beat") * sf.col("interval_s") * _MICROS
    sent_us = sf.lit(_epoch_s(plan.start) * _MICROS) + beat_us + sf.col("noise")
    slow = _dice(plan, "slow", "connector", "beat", sides=64)
    late_us = sf.when(slow == 0, sf.col("noise") * 1_500).when(slow <= 4, sf.col("noise") * 400)
    delay_us = sf.coalesce(late_us, sf.floor(sf.col("noise") / 20))
    clock = _dice(plan, "clock", "connector", sides=5)
    wrong_us = sf.when(clock == 0, 7_200 * _MICROS).when(clock == 1, -3_600 * _MICROS).otherwise(0)
    since_fall = sf.col("lived") - sf.when(sf.col("lived") >= sf.col("falls_at"), sf.col("falls_at")).otherwise(0)
    return lives.withColumn("noise", _dice(plan, "noise", "connector", "beat", sides=_MICROS)).select(
        "*",
        since_fall.alias("counts"),
        sf.timestamp_micros(sent_us + wrong_us).alias("sent_at"),
        sf.timestamp_micros(sent_us + delay_us).alias("received_at"),
        ((sf.col("lived") * sf.col("interval_s") * _MICROS + sf.col("noise")) / _MICROS).alias("uptime_s"),
    )


def _contract(reported: DataFrame, plan: FleetPlan) -> DataFrame:
    """The columns of `connector_heartbeat_log`."""
    kind = sf.pmod(sf.col("connector"), sf.lit(len(CONNECTOR_TYPES)))
    state = _dice(plan, "state", "connector", "beat", sides=11)
    error = sf.when(state == 0, "the source does not answer").otherwise(sf.lit(None).cast("string"))
    return reported.select(
        _uuid(plan, "heartbeat", "connector", "beat", "n").alias("id"),
        sf.element_at(sf.array(*map(sf.lit, CONNECTOR_TYPES)), (kind + 1).cast("int")).alias("connector_type"),
        sf.format_string("box-%d@example.org", "connector").alias("endpoint_identity"),
        _uuid(plan, "process", "connector", "name").alias("instance_id"),
        sf.when(state == 0, "error").when(state <= 2, "degraded").otherwise("healthy").alias("state"),
        error.alias("error_message"),
        "uptime_s",
        *(_counter(plan, name, stride) for name, stride in _STRIDES.items()),
        "received_at",
        "sent_at",
    )


def _counter(plan: FleetPlan, name: str, stride: int) -> Column:
    """Never falls while `counts` grows: what is added at random is less than a step."""
    burst = _dice(plan, name, "connector", "beat", sides=stride)
    return (sf.col("counts") * stride + burst).alias(name)


def _uuid(plan: FleetPlan, purpose: str, *of: str) -> Column:
    halves = (sf.xxhash64(sf.lit(plan.seed), sf.lit(f"{purpose} {half}"), *of) for half in (1, 2))
    digits = sf.lower(sf.concat(*(sf.lpad(sf.hex(half), 16, "0") for half in halves)))
    return sf.concat_ws("-", *(sf.substring(digits, begin, count) for begin, count in _UUID_PARTS))


def _dice(plan: FleetPlan, purpose: str, *of: str, sides: int) -> Column:
    """A number below `sides` that is always the same for the same purpose and thing."""
    return sf.pmod(sf.xxhash64(sf.lit(plan.seed), sf.lit(purpose), *of), sf.lit(sides))


def _epoch_s(day: date) -> int:
    return (day - date(1970, 1, 1)).days * DAY_S


Tell = Callable[[date, int], None]  # a day, and how many of its rows were written


def write_lake(spark: SparkSession, plan: FleetPlan, lake: Path, *, tell: Tell) -> int:
    """Files of the event `heartbeats`; the number of rows. A lake that is there is not touched."""
    must_be_free(lake)
    folder = lake / HEARTBEATS.name
    log = LakeLog(folder)
    log.create(server=GENERATED)
    for day in plan.dates:
        files = publish(stage(_as_in_the_lake(logged_heartbeats(spark, plan, day)), folder), folder)
        log.commit(lambda _, files=files: Commit(kind="append", add=files))  # type: ignore[misc]
        tell(day, sum(file.rows for file in files))
    return log.state().rows


def must_be_free(lake: Path) -> None:
    if LakeLog(lake / HEARTBEATS.name).exists:
        raise invalid("out", "has heartbeats already: name another folder")


def write_database(spark: SparkSession, plan: FleetPlan, dsn: str, *, run_id: UUID, tell: Tell) -> int:
    """Rows of `connector_heartbeat_log`."""
    table = CONNECTOR_HEARTBEAT_LOG
    _make_months(dsn, table, plan)
    total = 0
    for day in plan.dates:
        rows = merge_into(logged_heartbeats(spark, plan, day), dsn, table, run_id=run_id)
        tell(day, rows)
        total += rows
    return total


def _as_in_the_lake(made: DataFrame) -> DataFrame:
    stored = [name for name in HEARTBEATS.schema.fieldNames() if name != CHANGE]
    dated = made.select(*stored, sf.lit(0).cast("long").alias(CHANGE), sf.to_date(HEARTBEATS.born).alias(DATE))
    return dated.sortWithinPartitions(DATE, HEARTBEATS.born)


def _make_months(dsn: str, table: Table, plan: FleetPlan) -> None:
    """Places for the rows, under the names that the services give them."""
    month, last = plan.start.replace(day=1), plan.dates[-1] + timedelta(days=1)  # what is late comes a day later
    with transaction(dsn) as cursor:
        while month <= last:
            name = quote_identifier(f"{table.name}_p{month:%Y%m}")
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {quote_identifier(table.schema)}.{name} PARTITION OF {table.qualified}"
                f" FOR VALUES FROM ('{month} 00:00:00+00') TO ('{add_months(month, 1)} 00:00:00+00')"
            )
            month = add_months(month, 1)
