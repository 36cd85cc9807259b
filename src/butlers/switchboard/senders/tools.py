"""Carries out the operations about senders: who was refused, who has a code, and an operator's decision about both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from butlers.butler.activity import Report
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.channels.registry import channel_of
from butlers.contracts.envelope import invalid
from butlers.contracts.notify import Delivery, NotifyEnvelope, NotifyResponse
from butlers.errors import NotFound
from butlers.operations import senders as operations
from butlers.operations.operation import Role
from butlers.operations.senders import (
    AllowArguments,
    ApproveArguments,
    OwnerCodeArguments,
    PairingsArguments,
    RefusedArguments,
    SenderArguments,
)
from butlers.switchboard.senders.gate import SenderPolicies, read_code, shown
from butlers.switchboard.senders.records import SenderRecords, WritingSender
from butlers.telemetry import get_logger


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderTools:
    records: SenderRecords
    policies: SenderPolicies
    report: Report  # what operators did

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.REFUSED, self._refused),
            Tool.of(operations.PAIRINGS, self._pairings),
            Tool.of(operations.APPROVE, self._approve),
            Tool.of(operations.ALLOW, self._allow),
            Tool.of(operations.REMOVE, self._remove),
            Tool.of(operations.OWNER_CODE, self._owner_code),
        ]

    async def _refused(self, _caller: Caller, given: RefusedArguments) -> dict[str, Any]:
        return wire(await self.records.refused(channel=given.channel, before=given.cursor, limit=given.limit))

    async def _pairings(self, _caller: Caller, given: PairingsArguments) -> dict[str, Any]:
        return wire(await self.records.pairings(before=given.cursor, limit=given.limit))

    async def _approve(self, caller: Caller, given: ApproveArguments) -> dict[str, Any]:
        code = read_code(given.code)
        approved = await self.records.approve(code, by=caller.name) if code is not None else None
        if approved is None:
            raise NotFound.of("code", "no such code: it is unknown, was used, or is older than 24 hours")
        return self._done(caller, "senders.approve", approved)

    async def _allow(self, caller: Caller, given: AllowArguments) -> dict[str, Any]:
        identity = _identity(given)
        allowed = await self.records.allow(given.channel, identity, name=given.name, owner=given.owner)
        return self._done(caller, "senders.allow", allowed)

    async def _remove(self, caller: Caller, given: SenderArguments) -> dict[str, Any]:
        return self._done(caller, "senders.remove", await self.records.remove(given.channel, _identity(given)))

    async def _owner_code(self, _caller: Caller, given: OwnerCodeArguments) -> dict[str, Any]:
        found = await self.records.owner_code(given.channel) if self.policies.pairs_owner(given.channel) else None
        code, expires_at = (shown(found[0]), found[1]) if found is not None else (None, None)
        return wire({"channel": given.channel, "code": code, "expires_at": expires_at})

    def _done(self, caller: Caller, operation: str, result: dict[str, Any]) -> dict[str, Any]:
        self.report(operation, {"channel": result["channel"]}, result="completed", error=None, actor=caller.name)
        return wire(result)


def _identity(given: SenderArguments) -> str:
    """The identity as messages carry it; raises for what no message can carry."""
    try:
        return channel_of(given.channel).address.person(given.identity)
    except ValueError as error:
        raise invalid("identity", str(error)) from error


log = get_logger("butlers.senders")

SELF = Caller(name="switchboard", role=Role.BUTLER)
SUBJECT = "Who may write to this address"
OFFER = (
    "I do not know you, so I do not answer you yet. If the owner of this address expects you, tell them this code: "
    "{code}. They can let you in within 24 hours. I will not write again until then."
)
APPROVED = "{name} ({channel} {identity}) may write to me from now on."
NO_SUCH_CODE = "There is no code {code}, or it was used, or it is older than 24 hours. Nobody was let in."
WELCOME = (
    "This chat is the owner's now. I answer nobody else unless you let them in: "
    "see `butlers senders`, and who_may_write_{channel} in the settings."
)


class Notifier(Protocol):
    async def dispatch(self, caller: Caller | None, raw: Mapping[str, Any]) -> NotifyResponse: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderMessages:
    notifier: Notifier
    told: Callable[[UUID], Awaitable[None]]  # a stranger has its code
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def offer_code(self, sender: WritingSender, code: str, pairing_id: UUID) -> None:
        self._soon(self._offer(sender, OFFER.format(code=code), pairing_id))

    def tell_owner(self, owner: WritingSender, approved: Mapping[str, Any] | None, *, code: str, event: str) -> None:
        words = APPROVED.format(**approved) if approved else NO_SUCH_CODE.format(code=code)
        self._soon(self._send(owner, words, key=f"approval:{owner.endpoint}:{event}"))

    def welcome_owner(self, owner: WritingSender, *, event: str) -> None:
        self._soon(self._send(owner, WELCOME.format(channel=owner.channel), key=f"owner:{owner.endpoint}:{event}"))

    async def drain(self, timeout_s: float) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)

    async def _offer(self, sender: WritingSender, words: str, pairing_id: UUID) -> None:
        response = await self._send(sender, words, key=f"pairing:{pairing_id}")
        if response.error is None or not response.error.retryable:
            await self.told(pairing_id)

    async def _send(self, to: WritingSender, words: str, *, key: str) -> NotifyResponse:
        has_subject = channel_of(to.channel).has_subject
        envelope = NotifyEnvelope(
            origin_butler=SELF.name,
            delivery=Delivery(
                intent="send",
                channel=to.channel,
                message=words,
                recipient=to.conversation,
                subject=SUBJECT if has_subject else None,
            ),
            idempotency_key=key,
        )
        response = await self.notifier.dispatch(SELF, envelope.to_wire())
        if response.error is not None:
            log.warning("a word of the door was not sent", channel=to.channel, error_class=response.error.error_class)
        return response

    def _soon(self, saying: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(self._said(saying))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _said(self, saying: Coroutine[Any, Any, Any]) -> None:
        try:
            await saying
        except Exception as error:
            log.error("a word of the door was lost", error=error)
