"""Backfill: operators create, pause, resume and cancel jobs, connectors poll for them and report."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, Final, Literal, Self
from uuid import UUID

from pydantic import Field, model_validator

from butlers.contracts.backfill_state import JobAction, Status
from butlers.contracts.envelope import Identity, Value
from butlers.operations.operation import (
    ACTS,
    ADDS,
    CONNECTORS,
    CURSOR,
    LIMIT,
    LONGEST_PAGE,
    OPERATORS,
    PAGE,
    READS,
    Command,
    Document,
    Hint,
    Operation,
    Option,
    Page,
    Parameter,
    Result,
    Row,
    Target,
    get,
    post,
    when,
)

Delta = Annotated[int, Field(ge=0, le=1_000_000_000)]  # of one batch
_JOB = Option("job_id", "A job's id, as `backfill list` prints it.")
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


class JobsWanted(Value):
    connector_type: Identity | None = Field(default=None, description="only jobs of this kind of connector")
    endpoint_identity: Identity | None = Field(default=None, description="only jobs of this account")
    status: Status | None = Field(default=None, description="only jobs that stand so")
    cursor: Identity | None = Field(default=None, description="next_cursor of the page before; absent: the first page")
    limit: int = Field(default=PAGE, ge=1, le=LONGEST_PAGE, description="at most so many, on one page")


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


class JobResult(Result):
    job_id: str = Field(description="the job, by its id")
    status: str = Field(description="how the job stands")


class JobProgress(JobResult):
    cost_spent_today_cents: int = Field(description="what the job has cost today")


class JobTaken(Result):
    job_id: str | None = Field(description="the job, now the caller's; null: none waits")
    params: Row | None = Field(description="what to fetch, how fast and for how much")
    cursor: str | None = Field(description="where an earlier run of the job stopped")


class JobList(Page):
    jobs: list[Row] = Field(description="the jobs: what to fetch, how far they are and what they cost")


def _jobs(document: Document) -> Iterator[str]:
    for job in document["jobs"]:
        name = f"{job['connector_type']}:{job['endpoint_identity']}"
        yield f"{job['job_id']}  {when(job['created_at'])}  {job['status']:<11}  {name}"
        yield (
            f"    {', '.join(job['target_categories'])} from {job['date_from']} to {job['date_to']}:"
            f" {job['rows_processed']} processed, {job['rows_skipped']} skipped, {job['cost_spent_cents']} cents"
            f" ({job['cost_spent_today_cents']} of {job['daily_cost_cap_cents']} today)"
        )
        if job["error"]:
            yield f"    {job['error']}"


def _stands(document: Document) -> Iterator[str]:
    yield f"{document['job_id']}: {document['status']}"


def _created(document: Document) -> Iterator[str]:
    yield from _stands(document)
    yield Hint("follow it with: butlers backfill list")


def _changed_by(given: dict[str, Any]) -> Target:
    return Target(butler=PAUSE.butler, operation=f"backfill.{given.pop('action')}")


def _change(kind: JobAction, description: str) -> Operation:
    path = "/backfill/{job_id}/{action}"
    actions = (Parameter(name="action", annotation=JobAction),)
    all_of_them = post(path, "Pause, cancel or resume a backfill job", parameters=actions, target=_changed_by)
    return Operation(
        name=f"backfill.{kind}",
        description=description,
        arguments=JobArguments,
        returns=JobResult,
        hints=ACTS,
        roles=OPERATORS,
        routes=(all_of_them,) if kind is JobAction.PAUSE else (),
        commands=tuple(
            Command(f"backfill {action}", help, _stands, (_JOB,), fixed={"action": action})
            for action, help in _CHANGES.items()
        )
        if kind is JobAction.PAUSE
        else (),
    )


CREATE: Final = Operation(
    name="create_backfill_job",
    description="Ask a connector that is online to fetch messages of the past.",
    arguments=NewJob,
    returns=JobResult,
    hints=ADDS,
    roles=OPERATORS,
    routes=(post("/backfill", "Have messages of the past fetched", status=201),),
    commands=(
        Command(
            "backfill create",
            "Ask a connector that is online to fetch messages of the past.",
            _created,
            (
                Option(
                    "connector_type",
                    "A connector's type, as `butlers connectors` prints it.",
                    positional=True,
                    metavar="TYPE",
                ),
                Option(
                    "endpoint_identity",
                    "Which end of the source, as printed there.",
                    positional=True,
                    metavar="ENDPOINT",
                ),
                Option("target_categories", "What to fetch; may be given again.", "--category"),
                Option("date_from", "First day, like 2026-01-31.", "--from"),
                Option("date_to", "Last day, included.", "--to"),
                Option("rate_limit_per_hour", "Messages an hour; default 100.", "--rate-limit", default=None),
                Option("daily_cost_cap_cents", "Cents a day (UTC); default 500.", "--daily-cost-cap", default=None),
            ),
        ),
    ),
)
PAUSE: Final = _change(JobAction.PAUSE, "Let a backfill job rest until it is resumed.")
CANCEL: Final = _change(JobAction.CANCEL, "End a backfill job for good.")
RESUME: Final = _change(JobAction.RESUME, "Queue a backfill job again that was paused or reached its cost cap.")
LIST: Final = Operation(
    name="backfill.list",
    description="Backfill jobs and how far they are, newest first.",
    arguments=JobsWanted,
    returns=JobList,
    hints=READS,
    routes=(get("/backfill", "Backfill jobs, newest first"),),
    commands=(
        Command(
            "backfill list",
            "Jobs and how far they are, newest first.",
            _jobs,
            (
                Option("connector_type", "Only of this type of connector.", "--type"),
                Option("endpoint_identity", "Only of this end.", "--endpoint"),
                Option("status", "Only those that stand like this.", choices=True),
                LIMIT,
                CURSOR,
            ),
            none="no backfill jobs",
        ),
    ),
)
POLL: Final = Operation(
    name="backfill.poll",
    description="The oldest backfill job that waits for the calling connector, now its own.",
    arguments=PollArguments,
    returns=JobTaken,
    hints=ADDS,
    roles=CONNECTORS,
)
PROGRESS: Final = Operation(
    name="backfill.progress",
    description="What one batch of a backfill job did and cost; answers how the job stands.",
    arguments=Progress,
    returns=JobProgress,
    hints=ADDS,
    roles=CONNECTORS,
)

OPERATIONS: Final = (LIST, CREATE, PAUSE)
