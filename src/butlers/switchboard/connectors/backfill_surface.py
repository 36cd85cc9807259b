"""Carries out the operations about backfill jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from butlers.butler.activity import Report
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.surface import AnyTool, Tool
from butlers.contracts.backfill_state import Deed
from butlers.operations import backfill as operations
from butlers.operations.backfill import (
    JobArguments,
    JobsWanted,
    NewJob,
    PollArguments,
    Progress,
)
from butlers.operations.operation import Operation
from butlers.switchboard.connectors.backfill_jobs import BackfillJobs
from butlers.switchboard.connectors.registry import Connectors
from butlers.switchboard.connectors.speakers import Speakers


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillDesk:
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
