"""What the door itself writes: a stranger's code, and the answer to the owner's command. All of it leaves through
Messenger, in the background and under a key: a repeat sends nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from butlers.butler.identity import Caller
from butlers.channels.registry import channel_of
from butlers.contracts.notify import Delivery, NotifyEnvelope, NotifyResponse
from butlers.operations.operation import Role
from butlers.switchboard.senders.records import WritingSender
from butlers.telemetry import get_logger

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
