"""`audience-plan`: one message to an audience of any size, decided by the code of the online service.

    message.json, audience files, outbound.* --> decisions --> timetable --> plan/message_id=.../*.parquet
                                                                       └──> outbound.scheduled_messages (load=yes)

The window is the time in which it may be delivered. As online, whoever was decided for before keeps that decision and
is not checked again: the plan shows it, its minute counts as taken, and a load adds the others. Run again, nothing
changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from adbc_driver_manager.dbapi import Connection
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from butlers.contracts.envelope import invalid
from butlers.outbound.documents import MessageDocument, parse_document
from butlers.outbound.pacing import PaceGroup
from butlers.outbound.planning import pace
from butlers.outbound.records import stored_form
from butlers.outbound.values import Message
from butlers.pipeline.job import Job, JobContext, JobResult, Tense, Window
from butlers.pipeline.sinks.plans import add_rows, turn_to_load, write_plan
from butlers.pipeline.sources.audience import (
    count_audience,
    known_message,
    newest_version,
    read_audience,
    read_circumstances,
    read_clock,
    read_decisions,
)
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.tables.deliveries import (
    BLOCKED_RECIPIENTS,
    ENTITLEMENTS,
    MEMBERSHIPS,
    MESSAGES,
    PREFERENCES,
    SCHEDULED_MESSAGES,
)
from butlers.pipeline.transforms.audience_plan import (
    blocked_rows,
    checked,
    group_counts,
    message_row,
    pace_group,
    planned,
    scheduled_rows,
)

_ARGUMENTS = {
    "message": "file with the message (JSON), its recipient_ids left out",
    "audience": "file or folder with the column recipient_id: .csv, .jsonl or .parquet",
    "now": "the moment it is planned for, RFC 3339; --from unless said, with load=yes the database's clock if later",
    "load": "yes: also into the scheduled queue",
    "past": "yes: with load=yes, now may lie in the past; what is planned for then is due at once",
    "plan": "folder for the plan; plan/ in the lake unless said",
}
_LATE = timedelta(minutes=5)  # how far behind the database's clock a load's `now` may be


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What was asked for."""

    document: MessageDocument
    audience: str
    now: datetime | None  # None: not said
    is_loaded: bool
    is_past_allowed: bool


def run(context: JobContext) -> JobResult:
    order = _order(context.window, context.arguments)
    persisted: list[DataFrame] = []
    try:
        audience = _keep(read_audience(context.spark, order.audience), persisted)
        people = count_audience(audience, order.audience)
        with _turn(context, order) as turn:
            details = _decide(context, order, audience, turn, persisted)
        return JobResult(rows_in=people, rows_out=people, details=details)
    finally:
        for frame in persisted:
            frame.unpersist()


def _pinned(context: JobContext, document: MessageDocument) -> MessageDocument:
    """With the version of its template: the one it was loaded with before, or the newest."""
    if document.template_id is None or document.template_version is not None:
        return document
    known = known_message(context.dsn, document.id) or {}
    version = known.get("template_version") or newest_version(context.dsn, document.template_id)
    if version is None:
        raise invalid("template_id", "no such template")
    return document.model_copy(update={"template_version": version})


def _turn(context: JobContext, order: _Order) -> AbstractContextManager[Connection | None]:
    """Held from the first look at the tables to the last row of a load; a plan alone holds up nobody."""
    return turn_to_load(context.dsn, order.document.message()) if order.is_loaded else nullcontext()


def _decide(
    context: JobContext, order: _Order, audience: DataFrame, turn: Connection | None, persisted: list[DataFrame]
) -> dict[str, Any]:
    document, now = _pinned(context, order.document), _moment(context, order)
    if _is_known(context, document):
        decisions = read_decisions(context.spark, context.dsn, document.id)
        decided = _keep(decisions.join(audience, on="recipient_id", how="left_semi"), persisted)
        undecided = audience.join(decided, on="recipient_id", how="left_anti")
        added = _keep(_plan(context, undecided, document.message(), now, persisted), persisted)
        plan = added.unionByName(decided)
    else:
        plan = added = _keep(_plan(context, audience, document.message(), now, persisted), persisted)
    place = write_plan(plan, _folder(context), document.id)
    details = _summary(plan) | {"plan": str(place)}
    return details if turn is None else details | _load(context, turn, added, document, now)


def _plan(
    context: JobContext, undecided: DataFrame, message: Message, now: datetime, persisted: list[DataFrame]
) -> DataFrame:
    circumstances, booked = read_circumstances(context.dsn, message, now=now, horizon=context.window.end)
    preferences = read_table(context.spark, context.dsn, PREFERENCES)
    entitlements = read_table(context.spark, context.dsn, ENTITLEMENTS)
    memberships = read_table(context.spark, context.dsn, MEMBERSHIPS)
    decisions = _keep(checked(undecided, preferences, entitlements, memberships, circumstances), persisted)
    counts = _counts(decisions)
    return planned(decisions, pace(counts, circumstances, booked=booked), counts, circumstances)


def _keep(frame: DataFrame, persisted: list[DataFrame]) -> DataFrame:
    persisted.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
    return frame


def _counts(decisions: DataFrame) -> Mapping[PaceGroup, int]:
    rows = group_counts(decisions).collect()
    return {pace_group(row["earliest"], row["quiet"]): row["recipients"] for row in rows}


def _summary(plan: DataFrame) -> dict[str, Any]:
    rows = plan.groupBy("channel", "reason").agg(sf.count("*").alias("recipients")).collect()
    queued = {row["channel"]: row["recipients"] for row in rows if row["reason"] is None}
    blocked = {row["reason"]: row["recipients"] for row in rows if row["reason"] is not None}
    return {"queued": dict(sorted(queued.items())), "blocked": dict(sorted(blocked.items()))}


def _load(
    context: JobContext, turn: Connection, added: DataFrame, document: MessageDocument, now: datetime
) -> dict[str, int]:
    rows = (
        (MESSAGES, message_row(context.spark, document, stored_form(document), now)),
        (BLOCKED_RECIPIENTS, blocked_rows(added, now)),
        (SCHEDULED_MESSAGES, scheduled_rows(added, document, now)),
    )
    _, blocked, queued = add_rows(turn, context.dsn, rows, run_id=context.run_id)
    return {"loaded_blocked": blocked, "loaded": queued}


def _is_known(context: JobContext, document: MessageDocument) -> bool:
    """Whether it may have been decided for some before; another message of this id is refused."""
    known = known_message(context.dsn, document.id)
    if known is not None and known != json.loads(stored_form(document)):
        raise invalid("message", "its id was used for another message")
    return known is not None


def _order(window: Window, arguments: Mapping[str, str]) -> _Order:
    return _Order(
        document=_message(arguments),
        audience=_required(arguments, "audience"),
        now=_now(window, arguments),
        is_loaded=_is_yes(arguments, "load"),
        is_past_allowed=_is_yes(arguments, "past"),
    )


def _message(arguments: Mapping[str, str]) -> MessageDocument:
    path = Path(_required(arguments, "message"))
    try:
        text = path.read_bytes()
    except OSError as error:
        raise invalid("message", f"{path}: cannot be read ({error.strerror})") from None
    document = parse_document(MessageDocument, text, kind="message")
    if document.recipient_ids:
        raise invalid("message", f"{path}: must not name recipient_ids, the audience does")
    return document


def _now(window: Window, arguments: Mapping[str, str]) -> datetime | None:
    if (text := arguments.get("now")) is None:
        return None
    try:
        now = datetime.fromisoformat(text)
    except ValueError:
        raise invalid("now", "must be an RFC 3339 timestamp") from None
    if now.tzinfo is None:
        raise invalid("now", "must carry a UTC offset")
    if not window.start <= now < window.end:
        raise invalid("now", "must lie between --from and --to")
    return now.astimezone(UTC)


def _moment(context: JobContext, order: _Order) -> datetime:
    """A job has no clock, and the queue has: what a load plans for the past would be due at once, past all limits."""
    window = context.window
    if not order.is_loaded:
        return order.now or window.start
    clock = read_clock(context.dsn)
    now, clock_text = order.now or max(window.start, clock), f"by the database's clock it is {clock:%Y-%m-%dT%H:%M:%SZ}"
    if now >= window.end:
        raise invalid("now", f"--to lies in the past, {clock_text}")
    if now < clock - _LATE and not order.is_past_allowed:
        raise invalid("now", f"lies in the past, {clock_text}; say --set past=yes if all of it may leave at once")
    return now


def _is_yes(arguments: Mapping[str, str], name: str) -> bool:
    answer = arguments.get(name, "no")
    if answer not in ("yes", "no"):
        raise invalid(name, "must be yes or no")
    return answer == "yes"


def _required(arguments: Mapping[str, str], name: str) -> str:
    value = arguments.get(name)
    if not value:
        raise invalid(name, f"is missing: say --set {name}=..., {_ARGUMENTS[name]}")
    return value


def _folder(context: JobContext) -> Path:
    return Path(context.arguments.get("plan") or context.lake / "plan")


JOB = Job(
    name="audience-plan",
    about="bulk audience planning: channel and time, or the reason why not, for every recipient of a message",
    run=run,
    check=_order,
    tense=Tense.ANY,
    arguments=_ARGUMENTS,
)
JOBS = (JOB,)
