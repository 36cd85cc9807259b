"""Cron schedules. A native job runs as code; a schedule without one falls back to a prompt in the runtime.

A schedule is taken by itself and moved on before it runs, in the transaction that locked it: two processes never run
one twice, and a crash skips the run that was under way rather than repeating it. Missed runs of a sleeping machine are
run once, not once per miss. A run that fails is logged and recorded, and the next one comes by the calendar; a run that
takes longer than its schedule's pause is not joined by another of the same process.

A schedule for one moment has no next run to make up for a skipped one, so it is only put off: a crash repeats it, and
the key of its side effect makes the repetition harmless. Its record of the result ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic import Field

from butlers.butler.activity import Report, unreported
from butlers.butler.config import ScheduleSection, cron_problem, next_run
from butlers.butler.sessions import Spawner
from butlers.butler.toolbox import parse_arguments
from butlers.butler.transport import OWNER_CHANNEL, Notifier
from butlers.clock import Clock
from butlers.contracts.envelope import Channel, Identity, Text, Timestamp, Value, invalid
from butlers.errors import ClassifiedError, ConfigurationError, NotFound, ValidationError, from_wire
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger
from butlers.telemetry.catalogue import SCHEDULE_RUNS
from butlers.telemetry.telemetry import Telemetry

log = get_logger("butlers.schedules")
_BATCH = 20
LOOK_S = 5.0  # a change that another process made is seen within this time
_LOCKED_S = 1.0  # before what another process is just taking is looked at again
_AGAIN = timedelta(minutes=5)  # when a schedule for one moment is tried again after a crash
REMIND = "remind"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """Which run of which schedule a job is called for."""

    schedule: str
    due_at: datetime  # the moment it was due, however late it runs; for a repeated run of one moment, the later one
    recurs: bool  # False: a schedule for one moment


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterizedJob:
    """A job whose arguments are checked when a schedule names it, and which knows for which run it is called."""

    arguments: type[Value]
    run: Callable[[Any, ScheduledRun], Awaitable[dict[str, Any]]]


Job = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
AnyJob = Job | ParameterizedJob


class Scheduler:
    """Runs what is due."""

    def __init__(
        self,
        *,
        database: Database,
        schema: str,
        jobs: Mapping[str, AnyJob],
        spawner: Spawner,
        clock: Clock,
        telemetry: Telemetry,
        report: Report = unreported,
    ) -> None:
        self._database = database
        self._queries = Queries.load("butlers.butler", schema=schema)
        self._jobs = dict(jobs)
        self._spawner = spawner
        self._clock = clock
        self._telemetry = telemetry
        self._report = report
        self._running: set[str] = set()
        self._turn = asyncio.Lock()  # one worker waits for the next due schedule, the others run or wait for their turn
        self._changed = asyncio.Event()  # a schedule was made, changed or deleted here, or a run ended

    @property
    def job_names(self) -> frozenset[str]:
        return frozenset(self._jobs)

    def check(self, schedules: Sequence[ScheduleSection], *, source: str) -> None:
        """Refuse schedules of butler.toml that name an unknown job, or hand a job what it does not take."""
        for index, entry in enumerate(schedules):
            if entry.dispatch_mode != "job":
                continue
            try:
                self._check_job(entry.job_name or "", entry.job_args)
            except ValidationError as error:
                key, problem = (error.fields[0].field, error.fields[0].error)
                raise ConfigurationError(
                    f"the schedule {entry.name!r} cannot run: {key} {problem}",
                    source=source,
                    key=f"butler.schedule.{index}.{key}",
                    remedy=f"use one of the jobs {', '.join(sorted(self._jobs))} with the arguments that"
                    " docs/systems/butler.md lists, or a prompt with dispatch_mode = 'prompt'",
                ) from None

    def _check_job(self, name: str, arguments: Mapping[str, Any]) -> None:
        job = self._jobs.get(name)
        if job is None:
            known = ", ".join(sorted(self._jobs)) or "none"
            raise invalid("job_name", f"names no job of this butler; it has: {known}")
        if isinstance(job, ParameterizedJob):
            parse_arguments(job.arguments, arguments, below="job_args")

    async def sync(self, schedules: Sequence[ScheduleSection]) -> None:
        """Make the table say what butler.toml says."""
        now = self._clock.now()
        async with self._database.transaction() as connection:
            await connection.execute(self._queries.drop_stale_schedules, [entry.name for entry in schedules])
            for entry in schedules:
                await connection.execute(
                    self._queries.sync_schedule,
                    entry.name,
                    entry.cron,
                    entry.dispatch_mode,
                    entry.job_name,
                    entry.job_args,
                    entry.prompt,
                    entry.enabled,
                    next_run(entry.cron, now),
                    now,
                )

    async def run(self) -> None:
        """One worker: sleeps until a schedule is due, and runs it. As many run at one time as there are workers."""
        while True:
            async with self._turn:
                task = await self._next_due()
            await self._run(task)

    async def tick(self) -> list[dict[str, Any]]:
        """Run everything that is due now; returns what ran and how it went."""
        ran: list[dict[str, Any]] = []
        while len(ran) < _BATCH and (task := await self._take_due()) is not None:
            ran.append(await self._run(task))
        return ran

    async def _next_due(self) -> Record:
        """Sleep until a schedule is due, and take it. A change made here, or `LOOK_S`, ends a sleep early."""
        while True:
            self._changed.clear()
            due = await self._database.fetchval(self._queries.next_due_schedule, list(self._running))
            left_s = LOOK_S if due is None else (due - self._clock.now()).total_seconds()
            if left_s <= 0 and (task := await self._take_due()) is not None:
                return task
            pause = self._clock.sleep(min(left_s, LOOK_S) if left_s > 0 else _LOCKED_S)
            waits = [asyncio.create_task(pause), asyncio.create_task(self._changed.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def _take_due(self) -> Record | None:
        """A due schedule, moved on to its next run; it counts as running from now on."""
        now = self._clock.now()
        async with self._database.transaction() as connection:
            task = await connection.fetchrow(self._queries.due_schedule, now, list(self._running))
            if task is not None:
                following = next_run(task["cron"], now) if task["cron"] else now + _AGAIN
                await connection.execute(self._queries.advance_schedule, task["name"], following, now)
        if task is not None:
            self._running.add(task["name"])
        return task

    async def _run(self, task: Record) -> dict[str, Any]:
        try:
            return await self._run_and_record(task)
        finally:
            self._running.discard(task["name"])
            self._changed.set()

    async def _run_and_record(self, task: Record) -> dict[str, Any]:
        name = task["name"]
        try:
            outcome = await self._dispatch(task)
        except ClassifiedError as error:
            log.warning("schedule failed", schedule=name, error=error, error_class=error.error_class)
            outcome = {"status": "error", "error": error.describe()}
        except Exception as error:
            log.error("schedule failed", error=error, schedule=name)
            outcome = {"status": "error", "error": {"class": "internal_error", "message": type(error).__name__}}
        self._telemetry.count(SCHEDULE_RUNS, 1, outcome=outcome["status"])
        again = bool(outcome.get("error", {}).get("retryable"))
        await self._database.execute(self._queries.record_schedule_result, name, outcome, self._clock.now(), again)
        description = f"{failure['class']}: {failure['message']}" if (failure := outcome.get("error")) else None
        summary = {"schedule": name, "job_name": task["job_name"], "mode": outcome.get("mode")}
        self._report("schedule", summary, result=outcome["status"], error=description)
        return {"name": name, **outcome}

    async def _dispatch(self, task: Record) -> dict[str, Any]:
        job = self._jobs.get(task["job_name"]) if task["dispatch_mode"] == "job" else None
        if job is not None:
            return {"status": "ok", "mode": "native", "result": await _run_job(job, task)}
        prompt = task["prompt"] or f"Run the scheduled task {task['name']}."
        answer = await self._spawner.instruct(prompt, trigger_source=f"schedule:{task['name']}")
        # Without a model nobody carried the prompt out, and the record must not say otherwise.
        status = "skipped" if self._spawner.runtime_name == "local" else "ok"
        return {"status": status, "mode": "runtime", "result": {"text": answer.text}}

    async def create(
        self,
        *,
        name: str,
        cron: str | None,
        run_at: datetime | None = None,
        job_name: str | None = None,
        job_args: Mapping[str, Any] | None = None,
        prompt: str | None = None,
    ) -> dict[str, Any]:
        now = self._clock.now()
        due = _first_run(cron, run_at, now)
        mode = "job" if job_name else "prompt"
        if job_name:
            self._check_job(job_name, job_args or {})
        created = await self._database.fetchval(
            self._queries.create_schedule, name, cron, mode, job_name, dict(job_args or {}), prompt, True, due, now
        )
        if created is None:
            raise invalid("name", "a schedule of this name exists already")
        self._changed.set()
        return {"name": name, "next_run_at": due.isoformat()}

    async def update(self, *, name: str, cron: str | None, enabled: bool | None) -> dict[str, Any]:
        task = await self._database.fetchrow(self._queries.get_schedule, name)
        if task is None:
            raise NotFound.of("name", "no such schedule")
        now = self._clock.now()
        cron = cron or task["cron"]
        due = _first_run(cron, task["next_run_at"], now)
        enabled = task["enabled"] if enabled is None else enabled
        await self._database.execute(self._queries.update_schedule, name, cron, enabled, due, now)
        self._changed.set()
        return {"name": name, "cron": cron, "enabled": enabled, "next_run_at": due.isoformat()}

    async def delete(self, name: str) -> dict[str, Any]:
        if await self._database.fetchval(self._queries.delete_schedule, name) is None:
            raise NotFound.of("name", "no such schedule, or it belongs to butler.toml (disable it there)")
        self._changed.set()
        return {"name": name, "deleted": True}

    async def list(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._database.fetch(self._queries.list_schedules)]


async def _run_job(job: AnyJob, task: Record) -> dict[str, Any]:
    if not isinstance(job, ParameterizedJob):
        return await job(task["job_args"])
    arguments = parse_arguments(job.arguments, task["job_args"], below="job_args")
    run = ScheduledRun(schedule=task["name"], due_at=task["next_run_at"], recurs=task["cron"] is not None)
    return await job.run(arguments, run)


def _first_run(cron: str | None, run_at: datetime | None, now: datetime) -> datetime:
    if cron is not None:
        if (problem := cron_problem(cron)) is not None:
            raise invalid("cron", problem)
        return next_run(cron, now)
    if run_at is None:
        raise invalid("cron", "either a cron expression or a moment is required")
    return run_at


class ReminderArguments(Value):
    """What the job is told: `job_args` of a schedule with the job `remind`."""

    message: Text = Field(description="what to say")
    channel: Channel = Field(default=OWNER_CHANNEL, description="the channel it leaves by")
    recipient: Identity | None = Field(
        default=None, description="an address of the channel; without it and without contact_id: the owner"
    )
    contact_id: UUID | None = Field(default=None, description="the contact to remind, instead of an address")
    subject: Identity | None = Field(default=None, description="the subject, on channels that have one")
    key: Identity | None = Field(default=None, description="the identity of a reminder for one moment; set by remind")


class RemindArguments(Value):
    """What the tool is told."""

    message: Text = Field(description="what to say")
    due_at: Timestamp = Field(description="when to say it: RFC 3339 with an offset, in the future")
    channel: Channel = Field(default=OWNER_CHANNEL, description="the channel it leaves by")
    recipient: Identity | None = Field(default=None, description="an address of the channel; without one: the owner")


def remind_job(notifier: Notifier) -> ParameterizedJob:
    async def remind(reminder: ReminderArguments, run: ScheduledRun) -> dict[str, Any]:
        response = await notifier.send(
            reminder.message,
            channel=reminder.channel,
            recipient=reminder.recipient,
            contact_id=reminder.contact_id,
            subject=reminder.subject,
            key=f"remind:{_identity(reminder, run)}",
        )
        if (error := response.error) is not None:
            # Once Messenger has it, its own retries are over, too; trying again would only get the same answer.
            retryable = error.retryable and response.delivery is None
            raise from_wire(error.error_class, error.message, retryable=retryable)
        return response.to_wire()

    return ParameterizedJob(arguments=ReminderArguments, run=remind)


def _identity(reminder: ReminderArguments, run: ScheduledRun) -> str:
    if not run.recurs:  # a crash repeats it, at another moment
        return reminder.key or run.schedule
    return f"{run.schedule}:{run.due_at.isoformat()}"
