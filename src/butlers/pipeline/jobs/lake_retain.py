"""Whole days leave the event lake: those that ended more than a number of days before the window's end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from butlers.pipeline.job import Job, JobContext, JobResult, Schemas, Tense, Window
from butlers.pipeline.lake.events import chosen_events
from butlers.pipeline.lake.files import sweep
from butlers.pipeline.lake.log import LakeLog
from butlers.pipeline.lake.maintenance import retain
from butlers.pipeline.lake.stream import seconds, whole
from butlers.telemetry import get_logger

_KEEP_DAYS = "365"
_GRACE = "1h"


def run(context: JobContext) -> JobResult:
    keep_days, grace_s = _said(context.arguments)
    since = (context.window.end - timedelta(days=keep_days)).date()
    details: dict[str, Any] = {"kept_since": since.isoformat()}
    rows = 0
    for event in chosen_events(context.arguments.get("event"), context.schemas):
        folder = context.lake / event.name
        if LakeLog(folder).exists:
            removed = retain(folder, since=since)
            for day, count in removed.items():
                get_logger(__name__).info("day removed from the lake", table=event.name, partition=day, count=count)
            rows += sum(removed.values())
            details[event.name] = {"days": dict(removed), "files_deleted": sweep(folder, grace_s=grace_s)}
    return JobResult(rows_in=rows, rows_out=0, details=details)


def _said(arguments: Mapping[str, str]) -> tuple[int, float]:
    wanted = whole("keep_days", arguments.get("keep_days", _KEEP_DAYS), least=1)
    return wanted, seconds("grace", arguments.get("grace", _GRACE))


def check(_window: Window, arguments: Mapping[str, str]) -> None:
    chosen_events(arguments.get("event"), Schemas())
    _said(arguments)


JOB = Job(
    name="lake-retain",
    about="remove old days from the event lake",
    run=run,
    check=check,
    tense=Tense.OVER,
    arguments={
        "event": "one kind of events; all when left out",
        "keep_days": f"days before the window's end that stay, {_KEEP_DAYS} when left out",
        "grace": f"how long removed files stay for those who read them, {_GRACE} when left out",
    },
)
