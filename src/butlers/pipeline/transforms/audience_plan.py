"""A message and an audience: for each recipient a channel and a time, or the reason why not.

    audience + documents ──decided──> decisions ──group_counts──> driver: pace ──> Timetable
                                        │                                           │
                                        └───────────── planned <───────────────────┘

The decisions come from `butlers.outbound`, called in Arrow batches: it is the code of the online service. Only the
numbers of each pace group travel to the driver. A rank within the group is needed only where a group is split over
several minutes, so only then the audience is sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from butlers.outbound.documents import MessageDocument
from butlers.outbound.entitlements import EVERYONE, ROLE
from butlers.outbound.pacing import PaceGroup, Timetable
from butlers.outbound.planning import Circumstances, Decider, Refused, Sendable, no_time
from butlers.pipeline.tables import columns
from butlers.pipeline.tables.deliveries import BLOCKED_RECIPIENTS, MESSAGES, SCHEDULED_MESSAGES

if TYPE_CHECKING:
    import pyarrow

    Batches = Iterator[pyarrow.RecordBatch]

CHECKED = columns("recipient_id string, channel string, earliest bigint, quiet string, reason string, detail string")
PLAN = columns("recipient_id string, channel string, scheduled_at timestamp, reason string, detail string")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_GROUP = ("earliest", "quiet")


def checked(
    audience: DataFrame,
    preferences: DataFrame,
    entitlements: DataFrame,
    memberships: DataFrame,
    circumstances: Circumstances,
) -> DataFrame:
    """The decision about every recipient; `earliest` in microseconds since 1970."""
    documents = preferences.select(sf.col("subject_id").alias("recipient_id"), "document")
    organization = circumstances.message.organization_id or ""
    own, of_everyone = effective_permissions(entitlements, memberships, organization)
    stored = (
        audience.join(documents, on="recipient_id", how="left")
        .join(own, on="recipient_id", how="left")
        .crossJoin(sf.broadcast(of_everyone))
    )
    # Sorted, so that equal permissions are equal texts, which are decided once.
    held = sf.array_union(sf.coalesce("own", sf.array().cast("array<string>")), sf.col("of_everyone"))
    permissions = sf.concat_ws(" ", sf.array_sort(held)).alias("permissions")
    return stored.select("recipient_id", "document", permissions).mapInArrow(
        partial(_decide_batches, circumstances), CHECKED
    )


def effective_permissions(
    entitlements: DataFrame, memberships: DataFrame, organization: str
) -> tuple[DataFrame, DataFrame]:
    """By recipient what it holds itself and by its roles, and in one row what everyone holds: together what
    `effective_permissions` in outbound/queries.sql says.
    """
    here = sf.col("organization_id").isin("", organization)
    grants = entitlements.where(here).select("subject_id", "permission")
    roles = memberships.where(here).select(
        sf.col("subject_id").alias("recipient_id"), sf.concat(sf.lit(ROLE), "role").alias("subject_id")
    )
    by_role = roles.join(grants, on="subject_id", how="inner").select("recipient_id", "permission")
    direct = grants.select(sf.col("subject_id").alias("recipient_id"), "permission")
    own = direct.unionByName(by_role).groupBy("recipient_id").agg(sf.collect_set("permission").alias("own"))
    of_everyone = grants.where(sf.col("subject_id") == EVERYONE).agg(sf.collect_set("permission").alias("of_everyone"))
    return own, of_everyone


def group_counts(decisions: DataFrame) -> DataFrame:
    """How many recipients each pace group has."""
    sendable = decisions.where(sf.col("reason").isNull())
    return sendable.groupBy(*_GROUP).agg(sf.count("*").alias("recipients")).select(*_GROUP, "recipients")


def planned(
    decisions: DataFrame, timetable: Timetable, counts: Mapping[PaceGroup, int], circumstances: Circumstances
) -> DataFrame:
    """The plan: `scheduled_at` and a channel, or a reason."""
    slot = partial(_slot_batches, timetable, circumstances.until)
    rank = _rank() if is_split(timetable, counts) else sf.lit(0).cast("long")
    plan = decisions.withColumn("rank", rank).mapInArrow(slot, PLAN)
    message_id = sf.lit(str(circumstances.message.id)).alias("message_id")
    return plan.select(message_id, *PLAN.fieldNames())


def is_split(timetable: Timetable, counts: Mapping[PaceGroup, int]) -> bool:
    """Whether some group has more than one answer."""

    def has_one_answer(group: PaceGroup, count: int) -> bool:
        slots = timetable.slots.get(group, ())
        return not slots or slots[0][0] >= count

    return not all(has_one_answer(group, count) for group, count in counts.items())


def pace_group(earliest: int, quiet: str) -> PaceGroup:
    return PaceGroup(earliest=_EPOCH + earliest * _MICROSECOND, quiet=quiet)


def _rank() -> Any:
    within = Window.partitionBy(sf.col("reason").isNull(), *_GROUP).orderBy("recipient_id")
    return (sf.row_number().over(within) - 1).cast("long")


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _decide_batches(circumstances: Circumstances, batches: Batches) -> Batches:
    decide = Decider(circumstances)

    def decided_row(document: str | None, permissions: str | None) -> tuple[Any, ...]:
        result = decide(document, frozenset((permissions or "").split()))
        match result:
            case Sendable(channel=channel, group=group):
                return (channel, _micros(group.earliest), group.quiet, None, None)
            case Refused(reason=reason, detail=detail):
                return (None, None, None, reason.value, detail)

    yield from _with_columns(batches, ("document", "permissions"), _remembered(decided_row), CHECKED.fieldNames())


def _slot_batches(timetable: Timetable, until: datetime, batches: Batches) -> Batches:
    late = no_time(until)
    groups = {(_micros(group.earliest), group.quiet): group for group in timetable.slots}

    def planned_row(*result: Any) -> tuple[Any, ...]:
        channel, earliest, quiet, reason, detail, rank = result
        if reason is not None:
            return (None, None, reason, detail)
        slot = timetable.slot(groups[earliest, quiet], rank)
        if slot is None:
            return (None, None, late.reason.value, late.detail)
        return (channel, _micros(slot), None, None)

    taken = ("channel", "earliest", "quiet", "reason", "detail", "rank")
    yield from _with_columns(batches, taken, planned_row, PLAN.fieldNames())


_MOST_REMEMBERED = 100_000


def _remembered(row: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Equal inputs give equal rows, and an audience has few different ones."""
    known: dict[Any, tuple[Any, ...]] = {}

    def lookup(*values: Any) -> tuple[Any, ...]:
        found = known.get(values)
        if found is None:
            if len(known) >= _MOST_REMEMBERED:
                known.clear()
            found = known[values] = row(*values)
        return found

    return lookup


def _with_columns(
    batches: Batches, taken: tuple[str, ...], row: Callable[..., tuple[Any, ...]], names: list[str]
) -> Batches:
    """The recipients of each batch with what `row` makes of the other columns."""
    import pyarrow  # noqa: PLC0415  (on executors only)

    kinds = {
        "earliest": pyarrow.int64(),
        "scheduled_at": pyarrow.timestamp("us", tz="UTC"),
    }
    for batch in batches:
        inputs = (batch.column(name).to_pylist() for name in taken)
        made = list(zip(*map(row, *inputs), strict=True)) or [()] * (len(names) - 1)
        arrays = [
            pyarrow.array(values, type=kinds.get(name, pyarrow.string()))
            for name, values in zip(names[1:], made, strict=True)
        ]
        yield pyarrow.RecordBatch.from_arrays([batch.column("recipient_id").cast(pyarrow.string()), *arrays], names)


def message_row(spark: SparkSession, document: MessageDocument, text: str, now: datetime) -> DataFrame:
    row = spark.range(1).select(
        sf.lit(str(document.id)).alias("id"),
        sf.lit(document.sender_id).alias("sender_id"),
        sf.lit(text).alias("document"),
        sf.lit(now).alias("created_at"),
    )
    return row.select(*MESSAGES.columns.fieldNames())


def scheduled_rows(plan: DataFrame, document: MessageDocument, now: datetime) -> DataFrame:
    """Whoever is to get the message; the key is that of `butlers.outbound.values.dedupe_key`."""
    rows = plan.where(sf.col("reason").isNull()).withColumns(
        {
            "dedupe_key": sf.concat("message_id", sf.lit(":"), "recipient_id"),
            "sender_id": sf.lit(document.sender_id),
            "priority": sf.lit(document.priority.value),
            "created_at": sf.lit(now),
        }
    )
    return rows.select(*SCHEDULED_MESSAGES.columns.fieldNames())


def blocked_rows(plan: DataFrame, now: datetime) -> DataFrame:
    """Whoever is not, and why."""
    rows = plan.where(sf.col("reason").isNotNull()).withColumn("created_at", sf.lit(now))
    return rows.select(*BLOCKED_RECIPIENTS.columns.fieldNames())
