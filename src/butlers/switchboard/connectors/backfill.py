"""`backfill_jobs`: what operators have fetched from the past, and how far the connectors are with it.

Every change looks at the status it changes from, so two who decide at once do not overwrite each other, and two
connectors that poll at once never get the same job. A job whose connector fell silent is given out again, with its
cursor. The cost cap is counted by UTC day: a job that has reached it is not given out before the next day begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from butlers.butler.activity import Report
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.clock import Clock
from butlers.contracts.backfill_state import TRANSITIONS, JobAction, Status, status_after_report
from butlers.errors import Conflict, NotFound
from butlers.operations import connectors as operations
from butlers.operations.connectors import (
    JobArguments,
    JobListArguments,
    NewJob,
    PollArguments,
    Progress,
)
from butlers.operations.operation import Operation, page, place
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.connectors.registry import Connectors, Speakers

SILENT_FOR = timedelta(minutes=15)
PARAMETERS = ("target_categories", "date_from", "date_to", "rate_limit_per_hour", "daily_cost_cap_cents")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillJobs:
    database: Database
    queries: Queries
    clock: Clock
    new_id: Callable[[], UUID]
    connectors: Connectors
    speakers: Speakers
    report: Report  # what operators did

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.CREATE, self._create),
            self._change(operations.PAUSE, JobAction.PAUSE),
            self._change(operations.CANCEL, JobAction.CANCEL),
            self._change(operations.RESUME, JobAction.RESUME),
            Tool.of(operations.JOBS, self._list),
            Tool.of(operations.POLL, self._poll),
            Tool.of(operations.PROGRESS, self._progress),
        ]

    async def _create(self, caller: Caller, given: NewJob) -> dict[str, Any]:
        await self.connectors.must_be_online(given.connector_type, given.endpoint_identity)
        job_id, named = self.new_id(), (given.connector_type, given.endpoint_identity)
        parameters = [getattr(given, name) for name in PARAMETERS]
        await self.database.execute(self.queries.create_job, job_id, *named, *parameters, caller.name, self.clock.now())
        return self._done(caller, "create_backfill_job", {"job_id": job_id, "status": Status.PENDING})

    def _change(self, operation: Operation, action: JobAction) -> Tool:
        async def change(caller: Caller, given: JobArguments) -> dict[str, Any]:
            before, after = TRANSITIONS[action]
            values = (given.job_id, list(before), after, self.clock.now())
            if await self.database.fetchval(self.queries.change_job, *values) is None:
                raise await self._not_possible(action, given.job_id)
            return self._done(caller, operation.name, {"job_id": given.job_id, "status": after})

        return Tool.of(operation, change)

    async def _list(self, _caller: Caller, given: JobListArguments) -> dict[str, Any]:
        found = await self.database.fetch(
            self.queries.list_jobs,
            given.connector_type,
            given.endpoint_identity,
            given.status,
            self.clock.now().date(),
            *place(given.cursor),
            given.limit + 1,
        )
        jobs, following = page([dict(row) | {"id": row["job_id"]} for row in found], given.limit)
        for job in jobs:
            del job["id"]
        return wire({"jobs": jobs, "next_cursor": following})

    async def _poll(self, caller: Caller, given: PollArguments) -> dict[str, Any]:
        """The oldest job that waits, now the connector's; all None when there is none."""
        await self.speakers.check(caller, given.connector_type, given.endpoint_identity)
        now = self.clock.now()
        values = (given.connector_type, given.endpoint_identity, now, now - SILENT_FOR, now.date())
        job = await self.database.fetchrow(self.queries.take_job, *values)
        if job is None:
            return {"job_id": None, "params": None, "cursor": None}
        parameters = {name: job[name] for name in PARAMETERS}
        return wire({"job_id": job["job_id"], "params": parameters, "cursor": job["cursor"]})

    async def _progress(self, caller: Caller, progress: Progress) -> dict[str, Any]:
        """Count one batch, and say how the job stands."""
        owner = await self.database.fetchrow(self.queries.connector_of_job, progress.job_id)
        if owner is None:
            raise NotFound.of("job_id", "no such backfill job")
        await self.speakers.check(caller, **dict(owner))
        now = self.clock.now()
        async with self.database.transaction() as connection:
            job = await connection.fetchrow(self.queries.lock_job, progress.job_id)
            if job is None:
                raise NotFound.of("job_id", "no such backfill job")
            spent = await connection.fetchval(
                self.queries.spend, progress.job_id, now.date(), progress.cost_spent_cents
            )
            status = status_after_report(
                Status(job["status"]),
                reported=Status(progress.status) if progress.status else None,
                spent_today_cents=spent,
                daily_cost_cap_cents=job["daily_cost_cap_cents"],
            )
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
        return wire({"job_id": progress.job_id, "status": status, "cost_spent_today_cents": spent})

    async def _not_possible(self, action: JobAction, job_id: UUID) -> Exception:
        job = await self.database.fetchrow(self.queries.status_of_job, job_id)
        if job is None:
            return NotFound.of("job_id", "no such backfill job")
        possible = ", ".join(TRANSITIONS[action][0])
        problem = f"{action} is not possible: the job is {job['status']}, and not one of {possible}"
        return Conflict.of("job_id", problem)

    def _done(self, caller: Caller, operation: str, job: dict[str, Any]) -> dict[str, Any]:
        answer = wire(job)
        self.report(operation, {"job_id": answer["job_id"]}, result=answer["status"], error=None, actor=caller.name)
        return answer
