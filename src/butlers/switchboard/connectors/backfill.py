"""`backfill_jobs`: what operators want fetched from the past, and how far the connectors are with it.

Every change looks at the status it changes from, so two who decide at once do not overwrite each other, and two
connectors that poll at once never get the same job. A job whose connector fell silent is given out again, with its
cursor. The cost cap is counted by UTC day: a job that has reached it is not given out before the next day begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from butlers.butler.activity import Report
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.clock import Clock
from butlers.contracts.backfill_state import TRANSITIONS, Deed, Status, status_after_report
from butlers.errors import Conflict, NotFound
from butlers.operations import backfill as operations
from butlers.operations.backfill import (
    JobArguments,
    JobsWanted,
    NewJob,
    PollArguments,
    Progress,
)
from butlers.operations.operation import Operation
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries
from butlers.switchboard.connectors.heartbeats import Speakers
from butlers.switchboard.connectors.registry import Connectors
from butlers.switchboard.operators.audit import page, place

SILENT_FOR = timedelta(minutes=15)
PARAMETERS = ("target_categories", "date_from", "date_to", "rate_limit_per_hour", "daily_cost_cap_cents")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillJobs:
    database: Database
    queries: Queries
    clock: Clock
    new_id: Callable[[], UUID]

    async def create(self, wanted: NewJob, *, operator: str) -> dict[str, Any]:
        job_id = self.new_id()
        named = (wanted.connector_type, wanted.endpoint_identity)
        params = [getattr(wanted, name) for name in PARAMETERS]
        await self.database.execute(self.queries.create_job, job_id, *named, *params, operator, self.clock.now())
        return {"job_id": job_id, "status": Status.PENDING}

    async def change(self, deed: Deed, job_id: UUID) -> dict[str, Any]:
        before, after = TRANSITIONS[deed]
        changed = await self.database.fetchval(self.queries.change_job, job_id, list(before), after, self.clock.now())
        if changed is None:
            raise await self._not_possible(deed, job_id)
        return {"job_id": job_id, "status": after}

    async def list(self, wanted: JobsWanted) -> dict[str, Any]:
        found = await self.database.fetch(
            self.queries.list_jobs,
            wanted.connector_type,
            wanted.endpoint_identity,
            wanted.status,
            self.clock.now().date(),
            *place(wanted.cursor),
            wanted.limit + 1,
        )
        jobs, following = page([dict(row) | {"id": row["job_id"]} for row in found], wanted.limit)
        return {"jobs": [_without_id(job) for job in jobs], "next_cursor": following}

    async def poll(self, connector_type: str, endpoint_identity: str) -> dict[str, Any]:
        """The oldest job that waits, now the connector's; all None when there is none."""
        now = self.clock.now()
        job = await self.database.fetchrow(
            self.queries.take_job, connector_type, endpoint_identity, now, now - SILENT_FOR, now.date()
        )
        if job is None:
            return {"job_id": None, "params": None, "cursor": None}
        return {"job_id": job["job_id"], "params": {name: job[name] for name in PARAMETERS}, "cursor": job["cursor"]}

    async def connector_of(self, job_id: UUID) -> Mapping[str, Any]:
        job = await self.database.fetchrow(self.queries.connector_of_job, job_id)
        if job is None:
            raise NotFound.of("job_id", "no such backfill job")
        return dict(job)

    async def report(self, progress: Progress) -> dict[str, Any]:
        """Count one batch, and say how the job stands."""
        now = self.clock.now()
        async with self.database.transaction() as connection:
            job = await connection.fetchrow(self.queries.lock_job, progress.job_id)
            if job is None:
                raise NotFound.of("job_id", "no such backfill job")
            spent = await connection.fetchval(
                self.queries.spend, progress.job_id, now.date(), progress.cost_spent_cents
            )
            status = _status(job, progress, spent)
            await connection.execute(
                self.queries.record_progress,
                progress.job_id,
                progress.rows_processed,
                progress.rows_skipped,
                progress.cost_spent_cents,
                progress.cursor,
                status,
                progress.error,
                now,
            )
        return {"job_id": progress.job_id, "status": status, "cost_spent_today_cents": spent}

    async def _not_possible(self, deed: Deed, job_id: UUID) -> Exception:
        job = await self.database.fetchrow(self.queries.status_of_job, job_id)
        if job is None:
            return NotFound.of("job_id", "no such backfill job")
        possible = ", ".join(TRANSITIONS[deed][0])
        return Conflict.of("job_id", f"{deed} is not possible: the job is {job['status']}, and not one of {possible}")


def _status(job: Record, progress: Progress, spent_today_cents: int) -> Status:
    return status_after_report(
        Status(job["status"]),
        said=Status(progress.status) if progress.status else None,
        spent_today_cents=spent_today_cents,
        daily_cost_cap_cents=job["daily_cost_cap_cents"],
    )


def _without_id(job: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in job.items() if name != "id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillTools:
    jobs: BackfillJobs
    connectors: Connectors
    speakers: Speakers
    report: Report  # what operators did

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.CREATE, self._create),
            self._change(operations.PAUSE, Deed.PAUSE),
            self._change(operations.CANCEL, Deed.CANCEL),
            self._change(operations.RESUME, Deed.RESUME),
            Tool.of(operations.LIST, self._list),
            Tool.of(operations.POLL, self._poll),
            Tool.of(operations.PROGRESS, self._progress),
        ]

    def _change(self, operation: Operation, deed: Deed) -> Tool:
        async def change(caller: Caller, given: JobArguments) -> dict[str, Any]:
            return self._done(caller, operation.name, await self.jobs.change(deed, given.job_id))

        return Tool.of(operation, change)

    async def _create(self, caller: Caller, wanted: NewJob) -> dict[str, Any]:
        await self.connectors.must_be_online(wanted.connector_type, wanted.endpoint_identity)
        return self._done(caller, "create_backfill_job", await self.jobs.create(wanted, operator=caller.name))

    async def _list(self, _caller: Caller, wanted: JobsWanted) -> dict[str, Any]:
        return wire(await self.jobs.list(wanted))

    async def _poll(self, caller: Caller, who: PollArguments) -> dict[str, Any]:
        await self.speakers.registered(caller, who.connector_type, who.endpoint_identity)
        return wire(await self.jobs.poll(who.connector_type, who.endpoint_identity))

    async def _progress(self, caller: Caller, progress: Progress) -> dict[str, Any]:
        await self.speakers.registered(caller, **await self.jobs.connector_of(progress.job_id))
        return wire(await self.jobs.report(progress))

    def _done(self, caller: Caller, operation: str, job: dict[str, Any]) -> dict[str, Any]:
        told = wire(job)
        self.report(operation, {"job_id": told["job_id"]}, result=told["status"], error=None, actor=caller.name)
        return told
