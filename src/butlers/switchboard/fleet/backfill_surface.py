"""Backfill at the doors: operators create, pause, resume and cancel jobs, connectors poll for them and report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.activity import Report
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller, Role
from butlers.butler.surface import ACTS, ADDS, READS, AnyTool, Tool, ToolBox
from butlers.switchboard.description import Behind
from butlers.switchboard.fleet.backfill import Deed
from butlers.switchboard.fleet.backfill_arguments import (
    JobArguments,
    JobList,
    JobProgress,
    JobResult,
    JobsWanted,
    JobTaken,
    NewJob,
    PollArguments,
    Progress,
)
from butlers.switchboard.fleet.backfill_jobs import BackfillJobs
from butlers.switchboard.fleet.connectors import Connectors
from butlers.switchboard.fleet.routes import FleetDoor
from butlers.switchboard.fleet.speakers import Speakers
from butlers.switchboard.operators.paging import LONGEST_PAGE
from butlers.switchboard.proxy import BodyOf, CallerOf, add_routes

OPERATORS = frozenset({Role.OPERATOR})
CONNECTORS = frozenset({Role.CONNECTOR})


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillDesk:
    jobs: BackfillJobs
    connectors: Connectors
    speakers: Speakers
    report: Report  # what operators did

    def tools(self) -> list[AnyTool]:
        create = "Ask a connector that is online to fetch messages of the past."
        return [
            Tool(
                name="create_backfill_job",
                description=create,
                arguments=NewJob,
                returns=JobResult,
                hints=ADDS,
                handler=self._create,
                roles=OPERATORS,
            ),
            self._deed(Deed.PAUSE, "Let a backfill job rest until it is resumed."),
            self._deed(Deed.CANCEL, "End a backfill job for good."),
            self._deed(Deed.RESUME, "Queue a backfill job again that was paused or reached its cost cap."),
            Tool(
                name="backfill.list",
                description="Backfill jobs and how far they are, newest first.",
                arguments=JobsWanted,
                returns=JobList,
                hints=READS,
                handler=self._list,
            ),
            Tool(
                name="backfill.poll",
                description="The oldest backfill job that waits for the calling connector, now its own.",
                arguments=PollArguments,
                returns=JobTaken,
                hints=ADDS,
                handler=self._poll,
                roles=CONNECTORS,
            ),
            Tool(
                name="backfill.progress",
                description="What one batch of a backfill job did and cost; answers how the job stands.",
                arguments=Progress,
                returns=JobProgress,
                hints=ADDS,
                handler=self._progress,
                roles=CONNECTORS,
            ),
        ]

    def add_routes(self, app: FastAPI, caller_of: CallerOf, body_of: BodyOf) -> None:
        door = FleetDoor(tools=ToolBox(self.tools()), caller_of=caller_of, body_of=body_of)

        async def create(request: Request) -> Response:
            return await door.act(request, "create_backfill_job", *NewJob.model_fields, status=201)

        async def listed(
            request: Request,
            *,
            connector_type: str | None = None,
            endpoint_identity: str | None = None,
            status: str | None = None,
            cursor: str | None = None,
            limit: Annotated[int, Query(ge=1, le=LONGEST_PAGE)] = 50,
        ) -> Response:
            given = {"connector_type": connector_type, "endpoint_identity": endpoint_identity, "status": status}
            return await door.read(request, "backfill.list", **given, cursor=cursor, limit=limit)

        async def change(request: Request, job_id: UUID, deed: Deed) -> Response:
            return await door.act(request, f"backfill.{deed}", job_id=job_id)

        add_routes(
            app,
            ("GET", "/backfill", listed, "Backfill jobs, newest first", Behind(tool="backfill.list")),
            (
                "POST",
                "/backfill",
                create,
                "Have messages of the past fetched",
                Behind(tool="create_backfill_job", body=tuple(NewJob.model_fields), decides=True, status=201),
            ),
            (
                "POST",
                "/backfill/{job_id}/{deed}",
                change,
                "Pause, cancel or resume a backfill job",
                Behind(tool="backfill.pause", decides=True),
            ),
        )

    def _deed(self, deed: Deed, description: str) -> Tool:
        async def change(caller: Caller, given: JobArguments) -> dict[str, Any]:
            changed = await self.jobs.change(deed, given.job_id)
            return self._done(caller, f"backfill.{deed}", changed)

        return Tool(
            name=f"backfill.{deed}",
            description=description,
            arguments=JobArguments,
            returns=JobResult,
            hints=ACTS,
            handler=change,
            roles=OPERATORS,
        )

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
