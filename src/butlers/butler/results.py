"""What the tools of every butler answer, as MCP clients are told. Moments are RFC 3339 text, ids are UUIDs as text."""

from __future__ import annotations

from pydantic import Field, JsonValue

from butlers.operations.operation import Page, Result, Row


class Done(Result):
    status: str = Field(description="ok")


class StatusResult(Result):
    status: str = Field(description="ok, degraded, or on the way up or down")
    butler: str = Field(description="the butler's name")
    version: str = Field(description="the version of the program")
    runtime: str = Field(description="what carries out prompts: local, or an LLM command line")
    modules: list[str] = Field(description="the modules that are loaded")


class TraceResult(Result):
    """What is on record depends on the butler."""

    request_id: str | None = Field(default=None, description="the request that was asked about")
    ingress: Row | None = Field(default=None, description="how the request came in (Switchboard)")
    routing: Row | None = Field(default=None, description="who was to deal with it, and why (Switchboard)")
    deliveries: list[Row] | None = Field(default=None, description="what left because of it (Messenger, Switchboard)")
    route_inbox: list[Row] | None = Field(default=None, description="the parts that a specialist was to do")
    entries: list[Row] | None = Field(default=None, description="what a specialist kept of it")


class TriggerResult(Result):
    status: str = Field(description="ok")
    text: str = Field(description="what the runtime answered")
    duration_ms: int = Field(description="milliseconds it took")


class TickResult(Result):
    ran: list[Row] = Field(description="the schedules that ran: name, status, mode, and result or error")


class StateValue(Result):
    key: str = Field(description="the name of the value")
    found: bool = Field(description="whether there is such a value")
    value: JsonValue = Field(description="the value; null when there is none")


class StateStored(Result):
    key: str = Field(description="the name of the value")
    status: str = Field(description="ok")


class StateDeleted(Result):
    key: str = Field(description="the name of the value")
    deleted: bool = Field(description="whether there was such a value")


class StateList(Result):
    entries: list[Row] = Field(description="key, value and updated_at, in the order of the keys")


class ScheduleList(Result):
    schedules: list[Row] = Field(description="name, cron, what runs, when next, and how the last run went")


class ScheduleMade(Result):
    name: str = Field(description="the schedule, by its name")
    next_run_at: str = Field(description="when it runs next")


class ScheduleChanged(ScheduleMade):
    cron: str | None = Field(description="five fields, in UTC; null: for one moment")
    enabled: bool = Field(description="whether it runs")


class ScheduleDeleted(Result):
    name: str = Field(description="the schedule, by its name")
    deleted: bool = Field(description="true")


class SessionList(Page):
    sessions: list[Row] = Field(description="id, what started it, how it ended, how long it took")


class SessionResult(Result):
    session: Row = Field(description="the session, whole")


class SendResult(Result):
    queued: list[Row] = Field(description="one notify_response.v1 per person whose message is on its way")
    blocked: list[Row] = Field(description="one entry per person who gets nothing, with the reason or the error")
