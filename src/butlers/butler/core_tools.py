"""The tools every butler has (facts, section 4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import Field, JsonValue
from pydantic_core import to_jsonable_python

from butlers.butler.identity import Caller
from butlers.butler.schedules import REMIND, RemindArguments, Scheduler
from butlers.butler.sessions import Spawner
from butlers.butler.toolbox import Tool, tool, tools_of
from butlers.butler.transport import OWNER_CHANNEL, Notifier
from butlers.clock import Clock
from butlers.contracts.envelope import Channel, Identity, Text, Value, invalid
from butlers.contracts.notify import NotifyResponse
from butlers.errors import NotFound
from butlers.operations.messages import SEND, SendArguments, SendResult
from butlers.operations.operation import (
    ACTS,
    ADDS,
    CHANGES,
    EVERY_ROLE,
    READS,
    SENDS,
    SWITCHBOARD,
    NoArguments,
    Page,
    Result,
    Row,
)
from butlers.operations.requests import TRACE, TraceArguments
from butlers.storage.database import Database
from butlers.storage.queries import Queries

PAGE = 50


class Done(Result):
    status: str = Field(description="ok")


class StatusResult(Result):
    status: str = Field(description="ok, degraded, or on the way up or down")
    butler: str = Field(description="the butler's name")
    version: str = Field(description="the version of the program")
    runtime: str = Field(description="what carries out prompts: local, or an LLM command line")
    modules: list[str] = Field(description="the modules that are loaded")


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


class StateStore:
    def __init__(self, *, database: Database, schema: str, clock: Clock) -> None:
        self._database = database
        self._queries = Queries.load("butlers.butler", schema=schema)
        self._clock = clock

    async def get(self, key: str) -> dict[str, Any]:
        row = await self._database.fetchrow(self._queries.get_state, key)
        return {"found": row is not None, "value": row["value"] if row else None}

    async def set(self, key: str, value: Any) -> None:
        await self._database.execute(self._queries.set_state, key, value, self._clock.now())

    async def delete(self, key: str) -> bool:
        return bool(await self._database.fetchval(self._queries.delete_state, key))

    async def list(self, prefix: str, after: str | None, limit: int) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._database.fetch(self._queries.list_state, prefix, after, limit)]


Tracer = Callable[[UUID], Awaitable[dict[str, Any]]]


class TriggerArguments(Value):
    prompt: Text = Field(description="what to do")


class KeyArguments(Value):
    key: Identity = Field(description="the name of the value")


class SetArguments(Value):
    key: Identity = Field(description="the name of the value")
    value: JsonValue = Field(description="any JSON but null")


class ListStateArguments(Value):
    prefix: str = Field(default="", description="only keys that begin so")
    after: str | None = Field(default=None, description="only keys behind this one: the last key of the page before")
    limit: int = Field(default=PAGE, ge=1, le=500, description="at most so many, on one page")


class CreateScheduleArguments(Value):
    name: Identity = Field(description="a name that no other schedule has")
    cron: str = Field(description="five fields, in UTC: minute hour day month weekday")
    prompt: Text | None = Field(default=None, description="what the runtime is told; instead of job_name")
    job_name: Identity | None = Field(default=None, description="the native job; instead of prompt")
    job_args: dict[str, JsonValue] = Field(default_factory=dict, description="what the job is told")


class UpdateScheduleArguments(Value):
    name: Identity = Field(description="the schedule, by its name")
    cron: str | None = Field(default=None, description="five fields, in UTC; absent: as before")
    enabled: bool | None = Field(default=None, description="false: kept, but not run; absent: as before")


class NameArguments(Value):
    name: Identity = Field(description="the schedule, by its name")


class ListSessionsArguments(Value):
    before: UUID | None = Field(
        default=None, description="only sessions older than this one: next_cursor of the page before"
    )
    limit: int = Field(default=PAGE, ge=1, le=500, description="at most so many, on one page")


class SessionArguments(Value):
    session_id: UUID = Field(description="the session, by its id")


class NotifyArguments(Value):
    message: Text = Field(description="the text; light Markdown is rendered where the channel can")
    channel: Channel = Field(default=OWNER_CHANNEL, description="the channel it leaves by")
    recipient: Identity | None = Field(
        default=None, description="an address of the channel; absent, and without contact_id: the owner"
    )
    contact_id: UUID | None = Field(default=None, description="the contact to write to, instead of an address")
    subject: Identity | None = Field(default=None, description="the subject line, on channels that have one")
    idempotency_key: Identity | None = Field(
        default=None, description="a name for this message: a repeat with the same key is not sent again"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreTools:
    """Builds the tools over what a butler is made of."""

    butler: str
    status: Callable[[], dict[str, Any]]
    trace: Tracer
    state: StateStore
    scheduler: Scheduler
    spawner: Spawner

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name="status",
                description="How this butler is doing.",
                returns=StatusResult,
                hints=READS,
                handler=self._status,
                roles=EVERY_ROLE,
            ),
            Tool.of(TRACE, self._trace),
            *tools_of(self, owner=self.butler),
        ]

    async def _status(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return self.status()

    async def _trace(self, _caller: Caller, arguments: TraceArguments) -> dict[str, Any]:
        if arguments.request_id.version != 7:  # the door gives no other ids
            raise NotFound.of("request_id", "no such request")
        return wire(await self.trace(arguments.request_id))

    @tool("trigger", "Run a prompt in a session now.", TriggerResult, ACTS)
    async def _trigger(self, caller: Caller, arguments: TriggerArguments) -> dict[str, Any]:
        result = await self.spawner.instruct(arguments.prompt, trigger_source=f"trigger:{caller.name}")
        return {"status": "ok", "text": result.text, "duration_ms": result.duration_ms}

    @tool("tick", "Run the schedules that are due.", TickResult, ACTS)
    async def _tick(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return {"ran": await self.scheduler.tick()}

    @tool("state_get", "Read one value.", StateValue, READS)
    async def _state_get(self, _caller: Caller, arguments: KeyArguments) -> dict[str, Any]:
        return {"key": arguments.key, **await self.state.get(arguments.key)}

    @tool("state_set", "Write one value.", StateStored, CHANGES)
    async def _state_set(self, _caller: Caller, arguments: SetArguments) -> dict[str, Any]:
        if arguments.value is None:
            raise invalid("value", "null is not kept; state_delete forgets a key")
        await self.state.set(arguments.key, arguments.value)
        return {"key": arguments.key, "status": "ok"}

    @tool("state_delete", "Forget one value.", StateDeleted, CHANGES)
    async def _state_delete(self, _caller: Caller, arguments: KeyArguments) -> dict[str, Any]:
        return {"key": arguments.key, "deleted": await self.state.delete(arguments.key)}

    @tool("state_list", "List values by prefix.", StateList, READS)
    async def _state_list(self, _caller: Caller, arguments: ListStateArguments) -> dict[str, Any]:
        return wire({"entries": await self.state.list(arguments.prefix, arguments.after, arguments.limit)})

    @tool("schedule_list", "List the schedules.", ScheduleList, READS)
    async def _schedule_list(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return wire({"schedules": await self.scheduler.list()})

    @tool("schedule_create", "Add a schedule: a prompt for the runtime, or a job such as remind.", ScheduleMade, ADDS)
    async def _schedule_create(self, _caller: Caller, arguments: CreateScheduleArguments) -> dict[str, Any]:
        if (arguments.prompt is None) == (arguments.job_name is None):
            raise invalid("prompt", "give either a prompt or a job_name")
        return await self.scheduler.create(**arguments.model_dump())

    @tool("schedule_update", "Change or disable a schedule.", ScheduleChanged, CHANGES)
    async def _schedule_update(self, _caller: Caller, arguments: UpdateScheduleArguments) -> dict[str, Any]:
        return await self.scheduler.update(**arguments.model_dump())

    @tool("schedule_delete", "Remove a schedule.", ScheduleDeleted, CHANGES)
    async def _schedule_delete(self, _caller: Caller, arguments: NameArguments) -> dict[str, Any]:
        return await self.scheduler.delete(arguments.name)

    @tool("sessions_list", "Recent sessions, newest first.", SessionList, READS)
    async def _sessions_list(self, _caller: Caller, arguments: ListSessionsArguments) -> dict[str, Any]:
        sessions = await self.spawner.list(before=arguments.before, limit=arguments.limit)
        cursor = str(sessions[-1]["id"]) if len(sessions) == arguments.limit else None
        return wire({"sessions": sessions, "next_cursor": cursor})

    @tool("sessions_get", "One session.", SessionResult, READS)
    async def _sessions_get(self, _caller: Caller, arguments: SessionArguments) -> dict[str, Any]:
        session = await self.spawner.get(arguments.session_id)
        if session is None:
            raise NotFound.of("session_id", "no such session")
        return wire({"session": session})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakingTools:
    """Tools that make a message leave. Messenger, where messages leave, has none of them."""

    butler: str
    scheduler: Scheduler
    notifier: Notifier
    clock: Clock
    new_id: Callable[[], UUID]

    def tools(self) -> list[Tool]:
        return tools_of(self, owner=self.butler)

    @tool("notify", "Send a message to an address, a contact or the owner.", NotifyResponse, SENDS)
    async def _notify(self, _caller: Caller, arguments: NotifyArguments) -> dict[str, Any]:
        response = await self.notifier.send(
            arguments.message,
            channel=arguments.channel,
            recipient=arguments.recipient,
            contact_id=arguments.contact_id,
            subject=arguments.subject,
            key=arguments.idempotency_key,
        )
        return response.to_wire()

    @tool("send_message", SEND.description, SendResult, SENDS)
    async def _send_message(self, _caller: Caller, arguments: SendArguments) -> dict[str, Any]:
        given = arguments.model_dump(mode="json", exclude_none=True)
        return await self.notifier.transport.call(SWITCHBOARD, SEND.name, given)

    @tool("remind", "Send a message at a later moment.", ScheduleMade, SENDS)
    async def _remind(self, _caller: Caller, arguments: RemindArguments) -> dict[str, Any]:
        if arguments.due_at <= self.clock.now():
            raise invalid("due_at", "lies in the past")
        identity = str(self.new_id())
        reminder = {"key": identity} | arguments.model_dump(mode="json", exclude={"due_at"}, exclude_none=True)
        name = f"remind-{identity}"
        return await self.scheduler.create(
            name=name, cron=None, run_at=arguments.due_at, job_name=REMIND, job_args=reminder
        )


def wire(document: Mapping[str, Any]) -> dict[str, Any]:
    """Rows as JSON-ready data."""
    ready: dict[str, Any] = to_jsonable_python(document)
    return ready
