"""Connectors: their heartbeats, all that ever reported, and forgetting one. Backfill: operators create, pause, resume
and cancel jobs, connectors poll for them and report.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, Final, Literal, Self
from uuid import UUID

from pydantic import Field, model_validator

from butlers.contracts.backfill_state import JobAction, Status
from butlers.contracts.envelope import Identity, Value
from butlers.contracts.heartbeat import HeartbeatEnvelope, HeartbeatReply
from butlers.errors import ClassifiedError
from butlers.operations import operation as op


class ConnectorArguments(Value):
    connector_type: Identity = Field(description="the kind of connector, such as telegram")
    endpoint_identity: Identity = Field(description="the bot, mailbox or account that the connector watches")


class ConnectorList(op.Result):
    connectors: list[op.Row] = Field(description="the connectors: state, liveness, last heartbeat and today's counts")


class ConnectorGone(op.Result):
    connector_type: str = Field(description="the kind of connector")
    endpoint_identity: str = Field(description="the bot, mailbox or account")
    deregistered: bool = Field(description="true")


def _list(system: op.System, _given: op.Document) -> dict[str, Any]:
    """With the connectors of Switchboard's own process that are not well: one whose source refuses it never gets to a
    report.
    """
    found = system.get("/api/connectors")
    try:
        parts = system.get("/readyz").get("parts", [])
    except ClassifiedError:
        parts = []
    unwell = [part for part in parts if part["part"].endswith(" connector") and part["state"] != "ok"]
    return found | {"not_reporting": unwell}


def _connectors(document: op.Document) -> Iterator[str]:
    for row in document["connectors"]:
        name = f"{row['connector_type']}:{row['endpoint_identity']}"
        today = row["today"]
        yield (
            f"{name:<32} {row['liveness']:<7}  {row['state']:<8}  up {row['uptime_s']:.0f} s"
            f"  seen {op.when(row['last_heartbeat_at'])}"
            f"  today {today['messages_ingested']} taken in, {today['messages_failed']} failed"
        )
        if row["error_message"]:
            yield f"    {row['error_message']}"
    for part in document["not_reporting"]:
        words = " ".join(part[key] for key in ("sentence", "remedy") if key in part)
        yield f"{part['part']:<32} {part['state']}: {words}"


def _gone(document: op.Document) -> Iterator[str]:
    yield f"{document['connector_type']}:{document['endpoint_identity']} is forgotten"


HEARTBEAT: Final = op.Operation(
    name="connector.heartbeat",
    description="A connector says that it lives and what it has done (connector.heartbeat.v1).",
    arguments=HeartbeatEnvelope,
    returns=HeartbeatReply,
    hints=op.ADDS_ONCE,
    roles=op.CONNECTORS,
    routes=(
        op.post(
            "/connectors/heartbeat",
            "A connector's sign of life (connector.heartbeat.v1)",
            body_is="",
            decides=False,
            status=202,
        ),
    ),
)
LIST: Final = op.Operation(
    name="connectors.list",
    description="All connectors that ever reported: whether they are there, and what they did today.",
    returns=ConnectorList,
    hints=op.READS,
    routes=(op.get("/connectors", "All connectors, and whether they are there"),),
    commands=(
        op.Command(
            "connectors list",
            "Every connector that ever reported.",
            _connectors,
            none="no connector has reported yet",
            asks=_list,
            alone=True,
        ),
    ),
)
DEREGISTER: Final = op.Operation(
    name="connectors.deregister",
    description="Forget a connector; its next heartbeat registers it anew.",
    arguments=ConnectorArguments,
    returns=ConnectorGone,
    hints=op.CHANGES,
    roles=op.OPERATORS,
    routes=(op.post("/connectors/deregister", "Forget a connector"),),
    commands=(
        op.Command(
            "connectors deregister",
            "Forget a connector; its next heartbeat registers it anew.",
            _gone,
            (
                op.Option("connector_type", "A connector's type, like telegram.", positional=True, metavar="TYPE"),
                op.Option(
                    "endpoint_identity",
                    "Which end of the source, like the bot's name.",
                    positional=True,
                    metavar="ENDPOINT",
                ),
            ),
        ),
    ),
)

Delta = Annotated[int, Field(ge=0, le=1_000_000_000)]  # of one batch
_JOB = op.Option("job_id", "A job's id, as `backfill list` prints it.")
_CHANGES: Final = {
    JobAction.PAUSE: "Let a job rest until it is resumed.",
    JobAction.CANCEL: "End a job for good.",
    JobAction.RESUME: "Queue a job again that was paused or reached its cost cap.",
}


class NewJob(Value):
    connector_type: Identity = Field(description="the kind of connector, such as telegram")
    endpoint_identity: Identity = Field(description="the bot, mailbox or account that the connector watches")
    target_categories: list[Identity] = Field(
        min_length=1, max_length=100, description="what to fetch, in the words of the connector"
    )
    date_from: date = Field(description="the first day: YYYY-MM-DD")
    date_to: date = Field(description="the last day, included: YYYY-MM-DD")
    rate_limit_per_hour: int = Field(default=100, ge=1, le=1_000_000, description="at most so many messages an hour")
    daily_cost_cap_cents: int = Field(
        default=500, ge=1, le=1_000_000_000, description="pause for the day when it has cost so much"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.date_to < self.date_from:
            raise ValueError("date_to must not lie before date_from")
        return self


class JobArguments(Value):
    job_id: UUID = Field(description="the job, by its id")


class JobListArguments(Value):
    connector_type: Identity | None = Field(default=None, description="only jobs of this kind of connector")
    endpoint_identity: Identity | None = Field(default=None, description="only jobs of this account")
    status: Status | None = Field(default=None, description="only jobs that stand so")
    cursor: Identity | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many, on one page")


class PollArguments(Value):
    connector_type: Identity = Field(description="the kind of connector, such as telegram")
    endpoint_identity: Identity = Field(description="the bot, mailbox or account that the connector watches")


class Progress(Value):
    """One batch."""

    job_id: UUID = Field(description="the job, by its id")
    rows_processed: Delta = Field(description="messages of this batch that were handed in")
    rows_skipped: Delta = Field(description="messages of this batch that were left out")
    cost_spent_cents: Delta = Field(description="what this batch cost")
    cursor: str | None = Field(
        default=None, max_length=4_096, description="where the next batch begins, in the words of the connector"
    )
    status: Literal["active", "completed", "error"] | None = Field(
        default=None, description="how the job stands now; absent: active"
    )
    error: str | None = Field(default=None, max_length=2_000, description="what went wrong, in words")


class JobResult(op.Result):
    job_id: str = Field(description="the job, by its id")
    status: str = Field(description="how the job stands")


class JobProgress(JobResult):
    cost_spent_today_cents: int = Field(description="what the job has cost today")


class JobTaken(op.Result):
    job_id: str | None = Field(description="the job, now the caller's; null: none waits")
    params: op.Row | None = Field(description="what to fetch, how fast and for how much")
    cursor: str | None = Field(description="where an earlier run of the job stopped")


class JobList(op.Page):
    jobs: list[op.Row] = Field(description="the jobs: what to fetch, how far they are and what they cost")


def _jobs(document: op.Document) -> Iterator[str]:
    for job in document["jobs"]:
        name = f"{job['connector_type']}:{job['endpoint_identity']}"
        yield f"{job['job_id']}  {op.when(job['created_at'])}  {job['status']:<11}  {name}"
        yield (
            f"    {', '.join(job['target_categories'])} from {job['date_from']} to {job['date_to']}:"
            f" {job['rows_processed']} processed, {job['rows_skipped']} skipped, {job['cost_spent_cents']} cents"
            f" ({job['cost_spent_today_cents']} of {job['daily_cost_cap_cents']} today)"
        )
        if job["error"]:
            yield f"    {job['error']}"


def _stands(document: op.Document) -> Iterator[str]:
    yield f"{document['job_id']}: {document['status']}"


def _created(document: op.Document) -> Iterator[str]:
    yield from _stands(document)
    yield op.Hint("follow it with: butlers backfill list")


def _changed_by(given: dict[str, Any]) -> op.Target:
    return op.Target(butler=PAUSE.butler, operation=f"backfill.{given.pop('action')}")


def _change(kind: JobAction, description: str) -> op.Operation:
    path = "/backfill/{job_id}/{action}"
    actions = (op.Parameter(name="action", annotation=JobAction),)
    all_of_them = op.post(path, "Pause, cancel or resume a backfill job", parameters=actions, target=_changed_by)
    return op.Operation(
        name=f"backfill.{kind}",
        description=description,
        arguments=JobArguments,
        returns=JobResult,
        hints=op.ACTS,
        roles=op.OPERATORS,
        routes=(all_of_them,) if kind is JobAction.PAUSE else (),
        commands=tuple(
            op.Command(f"backfill {action}", help, _stands, (_JOB,), fixed={"action": action})
            for action, help in _CHANGES.items()
        )
        if kind is JobAction.PAUSE
        else (),
    )


CREATE: Final = op.Operation(
    name="create_backfill_job",
    description="Ask a connector that is online to fetch messages of the past.",
    arguments=NewJob,
    returns=JobResult,
    hints=op.ADDS,
    roles=op.OPERATORS,
    routes=(op.post("/backfill", "Have messages of the past fetched", status=201),),
    commands=(
        op.Command(
            "backfill create",
            "Ask a connector that is online to fetch messages of the past.",
            _created,
            (
                op.Option(
                    "connector_type",
                    "A connector's type, as `butlers connectors` prints it.",
                    positional=True,
                    metavar="TYPE",
                ),
                op.Option(
                    "endpoint_identity",
                    "Which end of the source, as printed there.",
                    positional=True,
                    metavar="ENDPOINT",
                ),
                op.Option("target_categories", "What to fetch; may be given again.", "--category"),
                op.Option("date_from", "First day, like 2026-01-31.", "--from"),
                op.Option("date_to", "Last day, included.", "--to"),
                op.Option("rate_limit_per_hour", "Messages an hour; default 100.", "--rate-limit", default=None),
                op.Option("daily_cost_cap_cents", "Cents a day (UTC); default 500.", "--daily-cost-cap", default=None),
            ),
        ),
    ),
)
PAUSE: Final = _change(JobAction.PAUSE, "Let a backfill job rest until it is resumed.")
CANCEL: Final = _change(JobAction.CANCEL, "End a backfill job for good.")
RESUME: Final = _change(JobAction.RESUME, "Queue a backfill job again that was paused or reached its cost cap.")
JOBS: Final = op.Operation(
    name="backfill.list",
    description="Backfill jobs and how far they are, newest first.",
    arguments=JobListArguments,
    returns=JobList,
    hints=op.READS,
    routes=(op.get("/backfill", "Backfill jobs, newest first"),),
    commands=(
        op.Command(
            "backfill list",
            "Jobs and how far they are, newest first.",
            _jobs,
            (
                op.Option("connector_type", "Only of this type of connector.", "--type"),
                op.Option("endpoint_identity", "Only of this end.", "--endpoint"),
                op.Option("status", "Only those that stand like this.", choices=True),
                op.LIMIT,
                op.CURSOR,
            ),
            none="no backfill jobs",
        ),
    ),
)
POLL: Final = op.Operation(
    name="backfill.poll",
    description="The oldest backfill job that waits for the calling connector, now its own.",
    arguments=PollArguments,
    returns=JobTaken,
    hints=op.ADDS,
    roles=op.CONNECTORS,
)
PROGRESS: Final = op.Operation(
    name="backfill.progress",
    description="What one batch of a backfill job did and cost; answers how the job stands.",
    arguments=Progress,
    returns=JobProgress,
    hints=op.ADDS,
    roles=op.CONNECTORS,
)

OPERATIONS: Final = (HEARTBEAT, LIST, DEREGISTER, JOBS, CREATE, PAUSE)
