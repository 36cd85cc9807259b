"""One run of a job, from the request to the record of its end.

    check the request --> database, tables --> row "running" --> Spark --> job --> row with the outcome

What can be wrong with a request is found before anything is started or written. Whatever happens after the row is
there, the row says how it ended; a process that is killed is found out by its lock (`runs.py`).
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from uuid import UUID

from pyspark.sql import SparkSession

from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import ButlersError, ClassifiedError, ConfigurationError, InternalError
from butlers.pipeline.connection import connect
from butlers.pipeline.job import Job, JobContext, JobResult, Tense, Window, find_job
from butlers.pipeline.lake.reading import existing_log
from butlers.pipeline.lake.stream import reported
from butlers.pipeline.runs import FAILED, NEEDS_ATTENTION, SUCCEEDED, Ending, OpenRun, Run, Runs, prepare
from butlers.pipeline.session import SessionSettings, check_reachable, essence, spark_session
from butlers.pipeline.sources.postgres import snapshots
from butlers.telemetry import get_logger
from butlers.telemetry.logs import describe_exception

log = get_logger("butlers.pipeline")

Watch = Callable[[SparkSession], AbstractContextManager[None]]

_MASTER = re.compile(r"local(\[[^\[\]]+\])?|local-cluster\[[^\[\]]+\]|spark://\S+|yarn|k8s://\S+")
_MEMORY = re.compile(r"([1-9]\d{0,8})([kmgt])b?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
LEAST_MEMORY = 512 << 20  # bytes; Spark wants 450 MiB of heap, and Java keeps some of what it is given
_REMOTE = re.compile(r"sc://\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    job: str
    window: Window
    dsn: str
    lake: Path
    session: SessionSettings
    arguments: Mapping[str, str] = field(default_factory=dict)


def run_job(
    request: RunRequest,
    *,
    clock: Clock,
    new_id: Callable[[], UUID],
    watch: Watch = lambda _: nullcontext(),
) -> dict[str, Any]:
    """The run as `butlers pipeline status` would show it; raises what stopped it."""
    job = check_request(request, clock.now())
    check_reachable(request.session)
    connect(request.dsn).close()  # says at once what is wrong with the address; the next line would wait for a server
    for event in job.reads(request.arguments):
        existing_log(request.lake, event)
    asyncio.run(prepare(request.dsn))
    runs = Runs(request.dsn)
    runs.recent(now=clock.now(), limit=1)
    run = Run(
        run_id=new_id(),
        job=job.name,
        window=request.window,
        arguments=request.arguments,
        master=request.session.shown,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_at=clock.now(),
    )
    with runs.begin(run) as opened:
        ending, error = _ended(lambda: _in_spark(job, request, run, opened, watch), clock)
        opened.finish(ending)
    log.info("pipeline run ended", job_id=run.run_id, job_name=run.job, outcome=ending.outcome)
    if error is not None:
        raise error
    return run.describe() | {"spark_app_id": opened.app_id} | ending.describe()


def check_request(request: RunRequest, now: datetime) -> Job:
    """Refuse what can be refused without a database, a cluster or Java."""
    job = find_job(request.job)
    _must_fit(job, request.window, now)
    unknown = sorted(set(request.arguments) - set(job.arguments))
    if unknown:
        known = ", ".join(job.arguments) or "none"
        near = get_close_matches(unknown[0], job.arguments, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise invalid("set", f"{job.name} has no argument {', '.join(unknown)}; it has: {known}{meant}")
    job.check(request.window, request.arguments)
    check_session(request.session)
    return job


def _must_fit(job: Job, window: Window, now: datetime) -> None:
    reason = f"must not be after now ({now.isoformat(timespec='seconds')})"
    if job.tense is Tense.OVER and window.end > now:
        raise invalid("to", f"{reason}: {job.name} is about the past")
    if job.tense is Tense.STARTED and window.start > now:
        raise invalid("from", f"{reason}: there is nothing to read yet")


def check_session(session: SessionSettings) -> None:
    """Refuse what Spark would refuse late and in its own words. Needs no database and no Java."""
    if not (given := _MEMORY.fullmatch(session.memory)):
        raise invalid("memory", "must be a number and a unit: 512m, 2g")
    if int(given[1]) * _UNITS[given[2].lower()] < LEAST_MEMORY:
        raise invalid("memory", f"is less than Spark starts with: give at least {LEAST_MEMORY >> 20}m, better 1g")
    if session.master is not None and not _MASTER.fullmatch(session.master):
        raise invalid("master", "must be local, local[N], spark://HOST:PORT, yarn or k8s://...")
    if session.remote is not None and not _REMOTE.fullmatch(session.remote):
        raise invalid("remote", "must be sc://HOST:PORT")


def _ended(work: Callable[[], JobResult], clock: Clock) -> tuple[Ending, BaseException | None]:
    began = clock.monotonic()
    result: JobResult | None = None
    error: BaseException | None = None
    try:
        result = work()
    except Exception as problem:
        error = _named(problem)
    except BaseException as stop:  # ctrl-C, or told to end: the row must not stay open
        error = stop
    ending = Ending(outcome=FAILED, ended_at=clock.now(), duration_ms=round((clock.monotonic() - began) * 1000))
    if result is None:
        return replace(ending, error=_described(error)), error
    outcome = SUCCEEDED if result.satisfied else NEEDS_ATTENTION
    return replace(
        ending, outcome=outcome, rows_in=result.rows_in, rows_out=result.rows_out, details=result.details
    ), None


def _in_spark(job: Job, request: RunRequest, run: Run, opened: OpenRun, watch: Watch) -> JobResult:
    with spark_session(f"butlers {job.name}", request.session) as spark:
        opened.name_application(spark.conf.get("spark.app.id", "") or "")
        context = JobContext(
            spark=spark,
            dsn=request.dsn,
            lake=request.lake,
            run_id=run.run_id,
            window=request.window,
            arguments=request.arguments,
        )
        with watch(spark), snapshots():
            return job.run(context)


def _named(problem: Exception) -> ButlersError:
    """The failure in a few words; Spark's own are a page, of which the first line says what happened."""
    if isinstance(problem, ButlersError):
        return problem
    text = str(problem)
    error = reported(text) or InternalError(f"Spark gave the job up: {essence(text)}")
    error.__cause__ = problem
    return error


def _described(error: BaseException | None) -> dict[str, Any]:
    """For the row: an unexpected failure with the places in the code that it came through."""
    if isinstance(error, ClassifiedError):
        cause = error.__cause__
        return error.describe() | ({"raised": describe_exception(cause)} if cause is not None else {})
    if isinstance(error, ConfigurationError):
        return {"class": "configuration_error", "message": str(error)}
    return {"class": "interrupted", "message": "the run was told to end"}
