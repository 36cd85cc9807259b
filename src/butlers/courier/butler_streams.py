"""The inbox and the outbox of every butler. Butlers that are somewhere else, and have no address, attach to theirs.

    agents/<name>/inbox     route.v1            work from Switchboard
                            tool_result         the answer to a call of a tool: {"tool", "result"} or {"tool", "error"}
    agents/<name>/outbox    route_response.v1   the answer to a route; `corr` is the id of the route's envelope
                            the name of a tool  a call of Switchboard's tool with the payload as its arguments, such as
                                                register_butler or notify.dispatch

A remote butler is known by the stream it may write to: its token allows its own outbox and no other. A call of a tool
is therefore the butler's own, and its rights are those that it would have at Switchboard's door. The calls of one
outbox are made one after the other; an answer to a route waits for none of them.

Switchboard's dispatcher calls `route.execute` here as it does over MCP. The route waits in the inbox while the butler
is away for a moment; a repeat of the same call joins the first one and does not send it again. A butler that is not
attached when the call comes is away, and the request waits in Switchboard. A butler takes part in its inbox's group
`default`; those that watch it name another one.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from butlers.butler.identity import Caller
from butlers.butler.toolbox import ToolBox
from butlers.butler.transport import Transport
from butlers.clock import Clock
from butlers.courier.errors import CourierError, UnknownStream
from butlers.courier.group import DEFAULT_GROUP
from butlers.courier.service import Courier
from butlers.courier.stream_reader import Poison, StreamReader
from butlers.errors import ClassifiedError, TargetUnavailable
from butlers.operations.operation import Role
from butlers.telemetry import get_logger

ROUTE, ROUTE_RESPONSE, TOOL_RESULT = "route.v1", "route_response.v1", "tool_result"
LOCAL_WORKERS = 3  # routes from one inbox that are carried out at once
MOST_CALLS = 10_000  # that are remembered; the oldest is forgotten first
AWAY_S = 5.0  # when to look again for a butler that is not attached
SENT_ANEW_S = 600.0  # after this time without an answer, a repeated call sends the work again
_STREAM = re.compile(r"agents/([^/]+)/(inbox|outbox)")
log = get_logger("butlers.courier")


def inbox_of(butler: str) -> str:
    return f"agents/{butler}/inbox"


def outbox_of(butler: str) -> str:
    return f"agents/{butler}/outbox"


def envelope_for(to: str, type_: str, payload: Any, clock: Clock, *, id: str | None = None, corr: str = "") -> Any:
    """An envelope of the system's own."""
    ts = clock.now().isoformat()
    own = {"id": id or str(uuid4()), "ts": ts, "from": "switchboard", "to": to, "type": type_, "payload": payload}
    return own | ({"corr": corr} if corr else {})


@dataclass(slots=True)
class RemoteCall:
    """Work that was put into an inbox, and what came of it; callers may come and go meanwhile."""

    id: str  # of the envelope
    sent_at: float
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    answer: dict[str, Any] | None = None
    refusal: TargetUnavailable | None = None
    is_acked: bool = False

    def end(self, *, answer: dict[str, Any] | None = None, refusal: TargetUnavailable | None = None) -> None:
        if not self.ended.is_set():
            self.answer, self.refusal = answer, refusal
            self.ended.set()

    def is_lost(self, now: float) -> bool:
        """The butler acked it and its answer did not come, or nothing came for too long."""
        return not self.ended.is_set() and (self.is_acked or now - self.sent_at > SENT_ANEW_S)


@dataclass(slots=True, kw_only=True)
class RemoteButlers:
    """A transport to butlers that are attached to the courier, and the reader of their outboxes."""

    local: Collection[str]  # butlers with a process of this system; every other name is a remote butler
    tools: ToolBox  # Switchboard's
    heartbeat: Callable[[str], Awaitable[bool]]  # a sign of life for the registry
    clock: Clock
    _courier: Courier | None = None
    _calls: OrderedDict[tuple[str, str], RemoteCall] = field(default_factory=OrderedDict)  # by butler and subrequest
    _sent: dict[tuple[str, str], RemoteCall] = field(default_factory=dict)  # the same by butler and id
    _outboxes: dict[str, StreamReader] = field(default_factory=dict)

    async def start(self, courier: Courier) -> None:
        """With the courier's queue, also for what its journal has of earlier."""
        self._courier = courier
        for stream in await courier.queue.streams():
            self._notice(stream)

    async def stop(self) -> None:
        self._courier = None  # nothing is begun any more
        await asyncio.gather(*(reader.stop() for reader in self._outboxes.values()))

    # --- to remote butlers -------------------------------------------------------------------------------------------

    async def call(self, butler: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Work for a remote butler, and its answer; the caller says how long it waits."""
        if tool != "route.execute":
            raise TargetUnavailable(f"{butler} is remote and takes routes only, not {tool}", retryable=False)
        if not await self.is_attached(butler):
            raise TargetUnavailable(f"{butler} is not attached to its inbox", retry_after=AWAY_S)
        self.notice(butler)
        key = (butler, str(arguments["subrequest"]["subrequest_id"]))
        call = await self._under_way(key) or await self._begin(key, arguments)
        await call.ended.wait()
        self._forget(key, call)
        if call.refusal is not None:
            raise call.refusal
        return call.answer or {}

    async def _under_way(self, key: tuple[str, str]) -> RemoteCall | None:
        """The call of before, whose caller did not wait for its end, or waits still."""
        call = self._calls.get(key)
        if call is not None and not call.ended.is_set() and self._courier is not None:
            # A gateway elsewhere may have seen its end, where the streams are shared.
            dead = await self._courier.queue.dead(inbox_of(key[0]))
            for reason in [one.reason for group, one in dead if (group, one.id) == (DEFAULT_GROUP, call.id)]:
                call.end(refusal=_given_back(key[0], reason))
        if call is not None and call.is_lost(self.clock.monotonic()):
            self._forget(key, call)
            return None
        return call

    async def _begin(self, key: tuple[str, str], arguments: Mapping[str, Any]) -> RemoteCall:
        call = RemoteCall(str(uuid4()), self.clock.monotonic())
        self._calls[key] = self._sent[key[0], call.id] = call
        if len(self._calls) > MOST_CALLS:
            oldest = next(iter(self._calls))
            self._forget(oldest, self._calls[oldest])
        corr = str(arguments["request_context"]["request_id"])
        try:
            await self._send(inbox_of(key[0]), ROUTE, dict(arguments), id=call.id, corr=corr)
        except CourierError as error:
            self._forget(key, call)
            problem = f"{key[0]} cannot be given more work now: {error}"
            raise TargetUnavailable(problem, retry_after=error.retry_after) from error
        return call

    def _forget(self, key: tuple[str, str], call: RemoteCall) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]
        self._sent.pop((key[0], call.id), None)

    async def _send(self, to: str, type_: str, payload: Any, *, id: str | None = None, corr: str) -> None:
        if self._courier is None:
            raise TargetUnavailable("the courier is not up")
        await self._courier.enqueue(envelope_for(to, type_, payload, self.clock, id=id, corr=corr))
        await self._courier.queue.durable()

    async def is_attached(self, butler: str) -> bool:
        if self._courier is None:
            return False
        try:
            return bool((await self._courier.queue.stats(inbox_of(butler)))["members"].get(DEFAULT_GROUP))
        except UnknownStream:
            return False

    async def report_attached(self) -> None:
        """Being attached is a sign of life, so that a remote butler needs no heartbeat of its own."""
        streams = await self._courier.queue.streams() if self._courier is not None else []
        for butler in {butler for stream in streams if (butler := self._remote(stream)) is not None}:
            if await self.is_attached(butler):
                await self.heartbeat(butler)

    # --- from remote butlers -----------------------------------------------------------------------------------------

    def notice(self, butler: str) -> None:
        """Read the outbox of a butler from now on, if it is a remote one."""
        if butler not in self._outboxes and butler not in self.local and self._courier is not None:
            reader = StreamReader(self._courier, outbox_of(butler), self._deal_with, at_once=_is_answer)
            self._outboxes[butler] = reader
            reader.start()

    def inserted(self, stream: str, _envelope: Mapping[str, Any]) -> None:
        """Called for every message that the courier accepts."""
        self._notice(stream)

    def observe(self, event: str, stream: str, id: str, details: Mapping[str, Any]) -> None:
        """A route that its butler has refused for good is answered."""
        if event not in ("dead", "ack") or details.get("group") != DEFAULT_GROUP:
            return
        butler = self._remote(stream)
        call = self._sent.get((butler, id)) if butler is not None else None
        if call is not None and event == "ack":
            call.is_acked = True
        elif call is not None:
            call.end(refusal=_given_back(butler, details.get("reason")))

    def _notice(self, stream: str) -> None:
        if (butler := self._remote(stream)) is not None:
            self.notice(butler)

    def _remote(self, stream: str) -> str | None:
        """The remote butler that a stream belongs to."""
        found = _STREAM.fullmatch(stream)
        return found[1] if found and found[1] not in self.local else None

    async def _deal_with(self, butler: str, envelope: Mapping[str, Any]) -> None:
        """Raises `Poison` for what can never be dealt with."""
        if _is_answer(envelope):
            self._answered(butler, envelope)
        elif self.tools.find(envelope["type"]) is not None:
            await self._call_tool(butler, envelope)
        else:
            raise Poison(f"{envelope['type']} is neither {ROUTE_RESPONSE} nor a tool of Switchboard")

    def _answered(self, butler: str, envelope: Mapping[str, Any]) -> None:
        if not isinstance(envelope["payload"], dict):
            raise Poison(f"the payload of {ROUTE_RESPONSE} must be an object")
        call = self._sent.get((butler, str(envelope.get("corr", ""))))
        if call is None:
            raise Poison("corr is not the id of a route that waits for an answer")
        call.end(answer=envelope["payload"])  # also when its caller is gone: a repeat of the call finds it

    async def _call_tool(self, butler: str, envelope: Mapping[str, Any]) -> None:
        tool, arguments = envelope["type"], envelope["payload"]
        if not isinstance(arguments, dict):
            raise Poison(f"the payload of a call of {tool} must be an object")
        result: dict[str, Any] = {"tool": tool}
        try:
            caller = Caller(name=butler, role=Role.BUTLER)
            result["result"] = await self.tools.call(tool, caller, arguments)
        except ClassifiedError as error:
            result["error"] = error.describe()
        try:
            await self._send(inbox_of(butler), TOOL_RESULT, result, corr=envelope["id"])
        except CourierError as error:  # the call is made, and its answer has no room
            log.warning("a remote butler's inbox is full", butler=butler, tool=tool, error=error)


def _is_answer(envelope: Mapping[str, Any]) -> bool:
    return bool(envelope["type"] == ROUTE_RESPONSE)


def _given_back(butler: str | None, reason: str | None) -> TargetUnavailable:
    return TargetUnavailable(f"{butler} gave the work back: {reason or 'it failed too often'}", retryable=False)


class LocalInboxes:
    """The inboxes of the butlers that this system runs: a route.v1 that an operator sends to one is carried out, and
    the answer is in its outbox. Everything else becomes a dead message with the reason.
    """

    def __init__(self, *, transport: Transport, clock: Clock) -> None:
        self._transport = transport  # Switchboard's, whom every butler trusts
        self._clock = clock
        self._courier: Courier | None = None
        self._readers: list[StreamReader] = []

    async def start(self, courier: Courier, butlers: Collection[str]) -> None:
        self._courier = courier
        for butler in butlers:
            reader = StreamReader(courier, inbox_of(butler), self._carry_out, workers=LOCAL_WORKERS)
            self._readers.append(reader)
            reader.start()

    async def stop(self) -> None:
        await asyncio.gather(*(reader.stop() for reader in self._readers))

    async def _carry_out(self, butler: str, envelope: Mapping[str, Any]) -> None:
        if envelope["type"] != ROUTE or not isinstance(envelope["payload"], dict):
            raise Poison(f"{butler} takes {ROUTE} with an object as its payload, not {envelope['type']}")
        answer = await self._transport.call(butler, "route.execute", envelope["payload"])
        if self._courier is not None:
            response = envelope_for(outbox_of(butler), ROUTE_RESPONSE, answer, self._clock, corr=envelope["id"])
            await self._courier.enqueue(response)
            await self._courier.queue.durable()
