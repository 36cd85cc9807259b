"""Few large files in the days of the window, and an end to files that nobody needs any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from butlers.pipeline.job import Job, JobContext, JobResult, Schemas, Window
from butlers.pipeline.lake.events import Event, chosen_events
from butlers.pipeline.lake.files import sweep
from butlers.pipeline.lake.log import LakeLog
from butlers.pipeline.lake.maintenance import TARGET_BYTES, compact
from butlers.pipeline.lake.stream import explaining, seconds, whole

_GRACE = "1h"


def run(context: JobContext) -> JobResult:
    target, grace_s = _said(context.arguments)
    details: dict[str, Any] = {}
    rows = 0
    for event in chosen_events(context.arguments.get("event"), context.schemas):
        folder = context.lake / event.name
        if LakeLog(folder).exists:
            done = _compact(context, event, folder, target)
            rows += sum(day["rows"] for day in done)
            details[event.name] = {"days": done, "files_deleted": sweep(folder, grace_s=grace_s)}
    return JobResult(rows_in=rows, rows_out=rows, details=details)


def _compact(context: JobContext, event: Event, folder: Path, target: int) -> list[dict[str, Any]]:
    dates = [day.isoformat() for day in context.window.days()]
    with explaining():
        return [asdict(day) for day in compact(context.spark, folder, event, dates, target_bytes=target)]


def _said(arguments: Mapping[str, str]) -> tuple[int, float]:
    wanted = whole("target_bytes", arguments.get("target_bytes", str(TARGET_BYTES)), least=1)
    return wanted, seconds("grace", arguments.get("grace", _GRACE))


def check(_window: Window, arguments: Mapping[str, str]) -> None:
    chosen_events(arguments.get("event"), Schemas())
    _said(arguments)


JOB = Job(
    name="lake-compact",
    about="write the small files of the event lake together, day by day",
    run=run,
    check=check,
    arguments={
        "event": "one kind of events; all when left out",
        "target_bytes": f"size of a file, {TARGET_BYTES} when left out",
        "grace": f"how long files that were replaced stay for those who read them, {_GRACE} when left out",
    },
)
