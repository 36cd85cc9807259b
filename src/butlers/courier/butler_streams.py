"""The inbox and the outbox of every butler. Butlers that are somewhere else, and have no address, attach to theirs.

    agents/<name>/inbox     route.v1            work from Switchboard
                            tool_result         the answer to a call of a tool: {"tool", "result"} or {"tool", "error"}
    agents/<name>/outbox    route_response.v1   the answer to a route; `corr` is the id of the route's envelope
                            the name of a tool  a call of Switchboard's tool with the payload as its arguments, such as
                                                register_butler or notify.dispatch

A remote butler is known by the stream it may write to: its token allows its own outbox and no other. A call of a tool
is therefore the butler's own, and its rights are those that it would have at Switchboard's door. What one outbox says
is dealt with in its order.

Switchboard's dispatcher calls `route.execute` here as it does over MCP. The route waits in the inbox while the butler
is away for a moment; a repeat of the same call does not send it again. A butler that is not attached when the call
comes is away, and the request waits in Switchboard.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from butlers.butler.identity import Caller
from butlers.butler.toolbox import ToolBox
from butlers.butler.transport import Transport
from butlers.clock import Clock
from butlers.courier.errors import CourierError, UnknownStream
from butlers.courier.messages import Delivery
from butlers.courier.service import Courier
from butlers.errors import ClassifiedError, TargetUnavailable
from butlers.operations.operation import Role
from butlers.telemetry import get_logger

ROUTE, ROUTE_RESPONSE, TOOL_RESULT = "route.v1", "route_response.v1", "tool_result"
GROUP = "switchboard"
LOCAL_WORKERS = 3  # routes from one inbox that are carried out at once
MOST_ANSWERS = 1_000  # that came when no call waited for them any more
AWAY_S = 5.0  # when to look again for a butler that is not attached
_STREAM = re.compile(r"agents/([^/]+)/(inbox|outbox)")
log = get_logger("butlers.courier")

Key = tuple[str, str]  # butler, id of the route's envelope
DealWith = Callable[[str, Mapping[str, Any]], Awaitable[None]]  # butler, envelope


def inbox_of(butler: str) -> str:
    return f"agents/{butler}/inbox"


def outbox_of(butler: str) -> str:
    return f"agents/{butler}/outbox"


def envelope_for(to: str, type_: str, payload: Any, clock: Clock, *, id: str | None = None, corr: str = "") -> Any:
    """An envelope of the system's own."""
    ts = clock.now().isoformat()
    own = {"id": id or str(uuid4()), "ts": ts, "from": "switchboard", "to": to, "type": type_, "payload": payload}
    return own | ({"corr": corr} if corr else {})


@dataclass(slots=True, kw_only=True)
class RemoteButlers:
    """A transport to butlers that are attached to the courier, and the reader of their outboxes."""

    local: Collection[str]  # butlers with a process of this system; every other name is a remote butler
    tools: ToolBox  # Switchboard's
    heartbeat: Callable[[str], Awaitable[bool]]  # a sign of life for the registry
    clock: Clock
    instance: str  # of this process: an id of an earlier one is not repeated
    _courier: Courier | None = None
    _waiting: dict[Key, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    _answers: OrderedDict[Key, dict[str, Any]] = field(default_factory=OrderedDict)  # no call waited for them
    _rounds: OrderedDict[str, int] = field(default_factory=OrderedDict)  # by subrequest: answers that were used up
    _outboxes: dict[str, StreamReader] = field(default_factory=dict)

    async def start(self, courier: Courier) -> None:
        """With the courier's queue, also for what its journal has of earlier."""
        self._courier = courier
        for stream in await courier.queue.streams():
            self._read_outbox(stream)

    async def stop(self) -> None:
        await asyncio.gather(*(reader.stop() for reader in self._outboxes.values()))

    # --- to remote butlers -------------------------------------------------------------------------------------------

    async def call(self, butler: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Work for a remote butler, and its answer; the caller says how long it waits."""
        self._read_outbox(outbox_of(butler))
        if tool != "route.execute":
            raise TargetUnavailable(f"{butler} is remote and takes routes only, not {tool}", retryable=False)
        if not await self.is_attached(butler):
            raise TargetUnavailable(f"{butler} is not attached to its inbox", retry_after=AWAY_S)
        subrequest = str(arguments["subrequest"]["subrequest_id"])
        key = (butler, f"{subrequest}.{self.instance[:8]}.{self._rounds.get(subrequest, 0)}")
        answer = self._answers.pop(key, None) or await self._asked(key, arguments)
        self._end_round(subrequest)
        return answer

    def _end_round(self, subrequest: str) -> None:
        """The envelope has its answer; the next call for this work sends another one."""
        self._rounds[subrequest] = self._rounds.pop(subrequest, 0) + 1
        if len(self._rounds) > MOST_ANSWERS:
            self._rounds.popitem(last=False)

    async def is_attached(self, butler: str) -> bool:
        if self._courier is None:
            return False
        try:
            return bool((await self._courier.queue.stats(inbox_of(butler)))["subscribers"])
        except UnknownStream:
            return False

    async def _asked(self, key: Key, arguments: Mapping[str, Any]) -> dict[str, Any]:
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = asyncio.get_running_loop().create_future()
        corr = str(arguments["request_context"]["request_id"])
        try:
            await self._send(inbox_of(key[0]), ROUTE, dict(arguments), id=key[1], corr=corr)
            return await waiting
        except CourierError as error:
            problem = f"{key[0]} cannot be given more work now: {error}"
            raise TargetUnavailable(problem, retry_after=error.retry_after) from error
        finally:
            self._waiting.pop(key, None)

    async def _send(self, to: str, type_: str, payload: Any, *, id: str | None = None, corr: str) -> None:
        if self._courier is None:
            raise TargetUnavailable("the courier is not up")
        await self._courier.enqueue(envelope_for(to, type_, payload, self.clock, id=id, corr=corr))
        await self._courier.queue.durable()

    async def report_attached(self) -> None:
        """Being attached is a sign of life, so that a remote butler needs no heartbeat of its own."""
        if self._courier is None:
            return
        for stream in await self._courier.queue.streams():
            if (butler := self._remote(stream)) is not None and await self.is_attached(butler):
                await self.heartbeat(butler)

    # --- from remote butlers -----------------------------------------------------------------------------------------

    def inserted(self, stream: str, _envelope: Mapping[str, Any]) -> None:
        """Called for every message that the courier accepts: an outbox that is new is read from now on."""
        self._read_outbox(stream)

    def observe(self, event: str, stream: str, id: str, details: Mapping[str, Any]) -> None:
        """A route that its butler has refused for good is answered."""
        butler = self._remote(stream) if event == "dead" else None
        waiting = self._waiting.get((butler, id)) if butler is not None else None
        if waiting is not None and not waiting.done():
            reason = details.get("reason") or "it failed too often"
            waiting.set_exception(TargetUnavailable(f"{butler} gave the work back: {reason}", retryable=False))
            self._end_round(id.split(".", maxsplit=1)[0])

    def _remote(self, stream: str) -> str | None:
        """The remote butler that a stream belongs to."""
        found = _STREAM.fullmatch(stream)
        return found[1] if found and found[1] not in self.local else None

    def _read_outbox(self, stream: str) -> None:
        butler = self._remote(stream)
        if butler is not None and butler not in self._outboxes and self._courier is not None:
            reader = self._outboxes[butler] = StreamReader(self._courier, outbox_of(butler), self._deal_with)
            reader.start()

    async def _deal_with(self, butler: str, envelope: Mapping[str, Any]) -> None:
        """Raises `Poison` for what can never be dealt with."""
        if envelope["type"] == ROUTE_RESPONSE:
            self._answered(butler, envelope)
        elif self.tools.find(envelope["type"]) is not None:
            await self._call_tool(butler, envelope)
        else:
            raise Poison(f"{envelope['type']} is neither {ROUTE_RESPONSE} nor a tool of Switchboard")

    def _answered(self, butler: str, envelope: Mapping[str, Any]) -> None:
        key, payload = (butler, str(envelope.get("corr", ""))), envelope["payload"]
        if not isinstance(payload, dict):
            raise Poison(f"the payload of {ROUTE_RESPONSE} must be an object")
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_result(payload)
            return
        self._answers[key] = payload  # the call was given up; a repeat of it finds the answer
        if len(self._answers) > MOST_ANSWERS:
            self._answers.popitem(last=False)

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


class Poison(Exception):
    """A message that no repeat makes better."""


class StreamReader:
    """Takes the messages of one butler's stream and deals with them: one after the other, or `workers` at a time."""

    def __init__(self, courier: Courier, stream: str, deal_with: DealWith, *, workers: int = 1) -> None:
        self._courier = courier
        self._stream = stream
        self._deal_with = deal_with
        self._workers = workers
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"courier {self._stream}")

    async def stop(self) -> None:
        """What is under way is given back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        queue = self._courier.queue
        me = await queue.subscribe(self._stream, deliver=self._deliveries.put_nowait, group=GROUP)
        try:
            await queue.grant(me, self._workers)
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._workers):
                    workers.create_task(self._work(me))
        finally:
            await queue.unsubscribe(me)

    async def _work(self, me: str) -> None:
        while True:
            await self._settle(me, await self._deliveries.get())
            await self._courier.queue.grant(me, 1)

    async def _settle(self, me: str, delivery: Delivery) -> None:
        queue, butler = self._courier.queue, self._stream.split("/")[1]
        holding = asyncio.create_task(self._hold(me, delivery))
        try:
            await self._deal_with(butler, delivery.envelope)
            await queue.ack(me, delivery.id, lease=delivery.lease)
        except Poison as error:
            await queue.nack(me, delivery.id, meaning="poison", reason=str(error), lease=delivery.lease)
        except CourierError as error:  # the lease ran out meanwhile: it comes again
            log.warning("a message of a butler is dealt with again", butler=butler, error=error)
        except Exception as error:
            if not isinstance(error, ClassifiedError):
                log.error("a message of a butler failed", butler=butler, error=error)
            await queue.nack(me, delivery.id, delay_s=AWAY_S, reason=str(error)[:512], lease=delivery.lease)
        finally:
            holding.cancel()

    async def _hold(self, me: str, delivery: Delivery) -> None:
        """Work may take longer than a lease."""
        with suppress(CourierError):
            while True:
                lease_s = await self._courier.queue.extend(me, delivery.id, lease=delivery.lease)
                await self._courier.clock.sleep(lease_s / 3)


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
