"""What the author of a message sees of its life: reactions, and a reply when it failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from butlers.butler.identity import Caller
from butlers.channels.channel import Feedback
from butlers.channels.registry import channel_of
from butlers.clock import Clock
from butlers.contracts.envelope import RequestContext
from butlers.contracts.notify import Delivery, NotifyContext, NotifyEnvelope, NotifyResponse
from butlers.errors import ErrorClass
from butlers.operations.operation import Role
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries
from butlers.switchboard.config import LifecycleSection
from butlers.switchboard.requests.inbox import LineageReader
from butlers.telemetry import get_logger

log = get_logger("butlers.signals")

SELF = Caller(name="switchboard", role=Role.BUTLER)
STALE = timedelta(minutes=2)  # an eye that comes later says nothing
SWEEP_GRACE, SWEEP_WINDOW, SWEEP_BATCH = timedelta(seconds=15), timedelta(hours=6), 50
AT_ONCE, MOST_WAITING = 16, 500
ENDED_BY_HAND = frozenset({"cancel", "abort", "force_complete"})
MAX_ITEMS = 5  # failures that a reply lists
_ADVICE: Mapping[str, str] = {
    ErrorClass.CLASSIFICATION_ERROR: "Say it in other words, please.",
    ErrorClass.VALIDATION_ERROR: "It cannot be done as it was written; say it in other words, please.",
    ErrorClass.ROUTING_ERROR: "Nobody here could take it.",
    ErrorClass.TARGET_UNAVAILABLE: "Please send it again in a few minutes.",
    ErrorClass.TIMEOUT: "It took too long. Please look whether it was done before you send it again.",
    ErrorClass.OVERLOAD_REJECTED: "Too much is going on. Please send it again in a few minutes.",
    ErrorClass.INTERNAL_ERROR: "This is a fault on our side; the message is kept.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request that came to its end."""

    context: RequestContext
    state: str  # parsed | errored
    error: Mapping[str, Any] | None = None
    outcomes: Sequence[Mapping[str, Any]] = ()
    override: Mapping[str, Any] | None = None  # what an operator decided about it


class Notifier(Protocol):
    async def dispatch(self, caller: Caller | None, raw: Mapping[str, Any]) -> NotifyResponse: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    settings: LifecycleSection
    notifier: Notifier
    lineage: LineageReader
    database: Database
    queries: Queries
    clock: Clock
    _chains: dict[UUID, asyncio.Task[None]] = field(default_factory=dict, init=False)  # in order within a request
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE), init=False)

    def is_awaited(self, channel_name: str, thread_identity: str | None) -> bool:
        """Whether the author of a message waits to see what becomes of it."""
        channel = channel_of(channel_name)
        followed = channel.inbound is not None and channel.inbound.feedback is not Feedback.NONE
        return self.settings.enabled and followed and channel.can_answer(thread_identity)

    def received(self, context: RequestContext) -> None:
        self._soon(context, lambda: self._react(context, "progress", self.settings.progress))

    def ended(self, ended: Ended) -> None:
        self._soon(ended.context, lambda: self._show_end(ended))

    async def answer(self, context: RequestContext, words: str) -> NotifyResponse:
        """Answer the author in Switchboard's own name; a repeat sends nothing more."""
        reply = Delivery(intent="reply", channel=context.source_channel, message=words)
        return await self._notify(context, reply, suffix="answer")

    async def sweep(self) -> None:
        """Show the ends that a dead process has left unsaid."""
        now = self.clock.now()
        rows = await self.database.fetch(self.queries.unsignalled, now - SWEEP_WINDOW, now - SWEEP_GRACE, SWEEP_BATCH)
        for row in rows:
            if row["request_id"] not in self._chains:
                self.ended(ended_of(row))

    async def drain(self, timeout_s: float) -> None:
        """Wait for what is being shown."""
        if self._chains:
            await asyncio.wait(list(self._chains.values()), timeout=timeout_s)

    def _soon(self, context: RequestContext, show: Callable[[], Awaitable[None]]) -> None:
        """Show it after what is being shown of the same request; an end that does not fit is shown by the sweep."""
        if len(self._chains) >= MOST_WAITING or not self.is_awaited(
            context.source_channel, context.source_thread_identity
        ):
            return
        request_id = context.request_id
        previous = self._chains.get(request_id)

        async def show_in_turn() -> None:
            try:
                if previous is not None:
                    await asyncio.wait([previous])
                async with self._slots:
                    await show()
            except Exception as error:
                log.warning("signal failed", error=error, request_id=request_id)
            finally:
                if self._chains.get(request_id) is asyncio.current_task():
                    del self._chains[request_id]

        self._chains[request_id] = asyncio.create_task(show_in_turn(), name=f"signal {request_id}")

    async def _show_end(self, ended: Ended) -> None:
        override = ended.override or {}
        # Tells this end apart from the next one, after an operator has put the request back.
        again = f":{override['round']}" if override.get("round") else ""
        emoji = self.settings.parsed if ended.state == "parsed" else self.settings.errored
        await self._react(ended.context, f"{ended.state}{again}", emoji)
        by_hand = override.get("action") in ENDED_BY_HAND  # its author is not told that something failed
        if ended.state == "errored" and self.settings.error_replies and not by_hand:
            words = error_reply(ended.error or {}, ended.outcomes, ended.context.request_id)
            reply = Delivery(intent="reply", channel=ended.context.source_channel, message=words)
            response = await self._notify(ended.context, reply, suffix=f"error_reply{again}")
            if response.error is not None and response.error.retryable:
                log.warning("error reply waits", request_id=ended.context.request_id)
                return  # the sweep says it again, under the same key
        await self.database.execute(self.queries.signalled, ended.context.request_id)

    async def _react(self, context: RequestContext, state: str, emoji: str) -> None:
        if not channel_of(context.source_channel).can_react:
            return
        known = await self.lineage.of(context.request_id)
        if known is None or "message_id" not in (known.source_event or {}):
            return  # not handed in by the connector: there is no message in the chat to react to
        not_after = self.clock.now() + STALE
        reaction = Delivery(intent="react", channel=context.source_channel, message=f"{state} {emoji}", emoji=emoji)
        response = await self._notify(context, reaction, not_after=not_after, suffix=state)
        if response.error is not None:
            log.warning("reaction was not set", request_id=context.request_id, error_class=response.error.error_class)

    async def _notify(
        self,
        context: RequestContext,
        delivery: Delivery,
        *,
        not_after: datetime | None = None,
        suffix: str,
    ) -> NotifyResponse:
        envelope = NotifyEnvelope(
            origin_butler=SELF.name,
            delivery=delivery,
            request_context=NotifyContext.answering(context),
            idempotency_key=f"lifecycle:{context.request_id}:{suffix}",
            not_after=not_after,
            priority="high" if delivery.intent == "reply" else "low",
        )
        return await self.notifier.dispatch(SELF, envelope.to_wire())


def ended_of(row: Record) -> Ended:
    """A stored request that has ended."""
    return Ended(
        context=RequestContext.model_validate(row["request_context"], strict=False),
        state=row["lifecycle_state"],
        error=row["lifecycle_error"],
        outcomes=row["dispatch_outcomes"] or (),
        override=row["override"],
    )


def error_reply(error: Mapping[str, Any], outcomes: Sequence[Mapping[str, Any]], request_id: object) -> str:
    """What was done, what was not and why, and the number to ask about it with."""
    done = sorted({str(outcome["target_butler"]) for outcome in outcomes if outcome.get("success")})
    failed = [(outcome["target_butler"], outcome["error"]) for outcome in outcomes if outcome.get("error")]
    lines = [f"Done: {', '.join(done)}."] if done else []
    lines += [
        f"{butler} could not do its part ({why.get('class')}): {_sentence(why.get('message'))}"
        for butler, why in failed[:MAX_ITEMS]
    ]
    if not failed:  # no butler was asked at all
        lines.append(f"That did not work: {_sentence(error.get('message'))}")
    advice = _ADVICE.get(str(error.get("class")), _ADVICE[ErrorClass.INTERNAL_ERROR])
    return "\n".join([*lines, advice, f"Reference: {request_id}"])


def _sentence(words: object) -> str:
    text = str(words or "no reason was given").strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
