"""`audience-plan`: one message to an audience of any size, decided by the code of the online service.

    message.json, audience files, outbound.* --> verdicts --> timetable --> plan/message_id=.../*.parquet
                                                                       └──> outbound.scheduled_messages (load=yes)

The window is the time in which it may be delivered. A load adds those who were not decided before, and touches nobody
else: run again, nothing changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from butlers.contracts.envelope import invalid
from butlers.outbound.documents import MessageDocument, parse_document
from butlers.outbound.planning import pace
from butlers.outbound.store import stored_form
from butlers.outbound.throttle import PaceGroup
from butlers.outbound.values import Message
from butlers.pipeline.job import Job, JobContext, JobResult
from butlers.pipeline.sinks.merge import merge_into
from butlers.pipeline.sinks.plans import write_plan
from butlers.pipeline.sources.audience import count_audience, read_audience
from butlers.pipeline.sources.outbound import known_message, read_circumstances
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.table_contracts.audience import (
    BLOCKED_RECIPIENTS,
    ENTITLEMENTS,
    MESSAGES,
    PREFERENCES,
    SCHEDULED_MESSAGES,
)
from butlers.pipeline.tables import Table
from butlers.pipeline.transforms.audience_load import blocked_rows, message_row, scheduled_rows
from butlers.pipeline.transforms.audience_plan import group_counts, judged, pace_group, planned

_ARGUMENTS = {
    "message": "file with the message (JSON), its recipient_ids left out",
    "audience": "file or folder with the column recipient_id: .csv, .jsonl or .parquet",
    "now": "the moment it is planned for, RFC 3339; --from unless said",
    "load": "yes: also into the scheduled queue",
    "plan": "folder for the plan; plan/ in the lake unless said",
}


def run(context: JobContext) -> JobResult:
    document, place, now = _message(context), _required(context, "audience"), _now(context)
    is_loaded = _is_loaded(context)
    kept: list[DataFrame] = []
    try:
        audience = _keep(read_audience(context.spark, place), kept)
        people = count_audience(audience, place)
        is_known = _is_known(context, document)
        plan = _keep(_plan(context, audience, document.message(), now, kept), kept)
        write_plan(plan, _folder(context))
        details = _summary(plan) | {"plan": str(_folder(context) / f"message_id={document.id}")}
        if is_loaded:
            details |= _load(context, plan, document, now=now, is_known=is_known)
        return JobResult(rows_in=people, rows_out=people, details=details)
    finally:
        for frame in kept:
            frame.unpersist()


def _plan(
    context: JobContext, audience: DataFrame, message: Message, now: datetime, kept: list[DataFrame]
) -> DataFrame:
    circumstances, booked = read_circumstances(context.dsn, message, now=now, horizon=context.window.end)
    preferences = read_table(context.spark, context.dsn, PREFERENCES)
    entitlements = read_table(context.spark, context.dsn, ENTITLEMENTS)
    verdicts = _keep(judged(audience, preferences, entitlements, circumstances), kept)
    counts = _counts(verdicts)
    return planned(verdicts, pace(counts, circumstances, booked=booked), counts, circumstances)


def _keep(frame: DataFrame, kept: list[DataFrame]) -> DataFrame:
    kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
    return frame


def _counts(verdicts: DataFrame) -> Mapping[PaceGroup, int]:
    rows = group_counts(verdicts).collect()
    return {pace_group(row["earliest"], row["quiet"]): row["recipients"] for row in rows}


def _summary(plan: DataFrame) -> dict[str, Any]:
    rows = plan.groupBy("channel", "reason").agg(sf.count("*").alias("recipients")).collect()
    queued = {row["channel"]: row["recipients"] for row in rows if row["reason"] is None}
    blocked = {row["reason"]: row["recipients"] for row in rows if row["reason"] is not None}
    return {"queued": dict(sorted(queued.items())), "blocked": dict(sorted(blocked.items()))}


def _load(
    context: JobContext, plan: DataFrame, document: MessageDocument, *, now: datetime, is_known: bool
) -> dict[str, int]:
    """The message first: whoever takes a row from the queue must find its words."""
    if is_known:
        known = _decided_before(context, document)
        plan = plan.join(known, on="recipient_id", how="left_anti")
    else:
        _merge(context, message_row(context.spark, document, stored_form(document), now), MESSAGES)
    return {
        "loaded_blocked": _merge(context, blocked_rows(plan, now), BLOCKED_RECIPIENTS),
        "loaded": _merge(context, scheduled_rows(plan, document, now), SCHEDULED_MESSAGES),
    }


def _merge(context: JobContext, frame: DataFrame, table: Table) -> int:
    return merge_into(frame, context.dsn, table, run_id=context.run_id)


def _decided_before(context: JobContext, document: MessageDocument) -> DataFrame:
    wanted, ours = ("message_id", "recipient_id"), sf.col("message_id") == str(document.id)
    tables = (SCHEDULED_MESSAGES, BLOCKED_RECIPIENTS)
    queued, blocked = (read_table(context.spark, context.dsn, table, columns=wanted).where(ours) for table in tables)
    return queued.select("recipient_id").unionByName(blocked.select("recipient_id"))


def _is_known(context: JobContext, document: MessageDocument) -> bool:
    """Whether a part of it may have been loaded before; another message of this id is refused."""
    known = known_message(context.dsn, document.id)
    if known is not None and known != json.loads(stored_form(document)):
        raise invalid("message", "its id was used for another message")
    return known is not None


def _message(context: JobContext) -> MessageDocument:
    path = Path(_required(context, "message"))
    try:
        text = path.read_bytes()
    except OSError as error:
        raise invalid("message", f"{path}: cannot be read ({error.strerror})") from None
    document = parse_document(MessageDocument, text, kind="message")
    if document.recipient_ids:
        raise invalid("message", f"{path}: must not name recipient_ids, the audience does")
    return document


def _now(context: JobContext) -> datetime:
    window, text = context.window, context.arguments.get("now")
    if text is None:
        return window.start
    try:
        now = datetime.fromisoformat(text)
    except ValueError:
        raise invalid("now", "must be an RFC 3339 timestamp") from None
    if now.tzinfo is None:
        raise invalid("now", "must carry a UTC offset")
    if not window.start <= now < window.end:
        raise invalid("now", "must lie between --from and --to")
    return now.astimezone(UTC)


def _is_loaded(context: JobContext) -> bool:
    answer = context.arguments.get("load", "no")
    if answer not in ("yes", "no"):
        raise invalid("load", "must be yes or no")
    return answer == "yes"


def _required(context: JobContext, name: str) -> str:
    value = context.arguments.get(name)
    if not value:
        raise invalid(name, f"is missing: say --set {name}=..., {_ARGUMENTS[name]}")
    return value


def _folder(context: JobContext) -> Path:
    return Path(context.arguments.get("plan") or context.lake / "plan")


JOB = Job(
    name="audience-plan",
    about="bulk audience planning: channel and time, or the reason why not, for every recipient of a message",
    run=run,
    arguments=_ARGUMENTS,
)
