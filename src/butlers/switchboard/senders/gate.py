"""The sender's check at the door in, for messages that a channel's connector brings.

    contacts -> decide (policy.py) -> served:   on into the inbox; the owner's "approve CODE" is done here and ends here
                                   -> pairing:  a code for the stranger, once; refused
                                   -> refused:  counted and listed, and not a word

What a refused sender wrote is not stored. The refusal is final for its message, so the connector's checkpoint moves on.
As long as the owner has no identity on a channel, the chat that sends the owner's code becomes the owner's.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from butlers.butler.identity import Caller
from butlers.channels.channel import AnswersGo, Inbound
from butlers.channels.registry import channel_of
from butlers.contracts.ingest import IngestEnvelope
from butlers.contracts.notify import Delivery, NotifyEnvelope, NotifyResponse
from butlers.errors import SenderRefused
from butlers.operations.operation import Role
from butlers.switchboard.ingress.authority import speaks_for_itself
from butlers.switchboard.ingress.submission import dedupe_identity
from butlers.switchboard.senders.records import (
    SERVED,
    Decision,
    Known,
    Outcome,
    Policy,
    SenderRecords,
    WritingSender,
    decide,
    read_approval,
    read_code,
    shown,
)
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import SENDER_REFUSED

log = get_logger("butlers.senders")

MOST_WRONG_CODES = 5  # of one sender, before its codes are no longer looked at
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderPolicies:
    """What the settings say."""

    channels: Mapping[str, Policy]  # a channel that is not among them is open: its callers have tokens
    mail_authenticated: bool  # a mail counts for its From only when the receiving server vouches for it
    mail_server: str | None  # that server's authserv-id

    def of(self, channel: str) -> Policy:
        return self.channels.get(channel, Policy.OPEN)

    def pairs_owner(self, channel: str) -> bool:
        """Whether a chat may become the owner's by a code: only where a chat is one person's."""
        inbound = channel_of(channel).inbound
        return inbound is not None and inbound.pairs_owner and self.of(channel) is not Policy.OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderGate:
    policies: SenderPolicies
    records: SenderRecords
    messages: SenderMessages
    telemetry: Telemetry

    async def admit(self, envelope: IngestEnvelope, submitted_by: Caller) -> bool:
        """True: to be worked on. False: it was a command to the door and is done. Raises `SenderRefused`."""
        if submitted_by.role is Role.OPERATOR or speaks_for_itself(submitted_by, envelope):
            return True
        policy, confirms = self.policies.of(envelope.source.channel), _inbound(envelope).confirms_sender
        authenticated = True
        if confirms is not None and self.policies.mail_authenticated:
            authenticated = confirms(envelope.sender.identity, envelope.payload.raw, self.policies.mail_server)
        if policy is Policy.OPEN and authenticated:
            return True
        sender = _writing(envelope)
        known = await self.records.known(sender.channel, sender.identity)
        decision = decide(policy, known, authenticated=authenticated)
        if decision == SERVED:
            return known is not Known.OWNER or not await self._approves(envelope, sender)
        if known is Known.STRANGER and await self._becomes_owner(envelope, sender):
            return False
        await self._refuse(envelope, sender, decision, submitted_by)
        return False

    async def _approves(self, envelope: IngestEnvelope, owner: WritingSender) -> bool:
        """Whether the owner's message is a command that lets a stranger in; if so, it is carried out."""
        lines = _inbound(envelope).command_lines(envelope.payload.normalized_text, envelope.payload.raw)
        code = next((code for code in map(read_approval, lines) if code is not None), None)
        if code is None:
            return False
        event = envelope.event.external_event_id
        approved = await self.records.approve(code, by=f"{owner.channel}:{owner.identity}", event=event)
        self.messages.tell_owner(owner, approved, code=shown(code), event=event)
        return True

    async def _becomes_owner(self, envelope: IngestEnvelope, sender: WritingSender) -> bool:
        code = read_code(envelope.payload.normalized_text)
        if code is None or not sender.is_private or not self.policies.pairs_owner(sender.channel):
            return False
        if await self.records.wrong_codes(sender) >= MOST_WRONG_CODES:
            return False
        if not await self.records.pair_owner(sender, code):
            return False
        log.info("a chat has become the owner's", source_channel=sender.channel)
        self.messages.welcome_owner(sender, event=envelope.event.external_event_id)
        return True

    async def _refuse(
        self, envelope: IngestEnvelope, sender: WritingSender, decision: Decision, submitted_by: Caller
    ) -> None:
        reason = decision.reason.value if decision.reason is not None else "refused"
        event = dedupe_identity(envelope, submitted_by=submitted_by).key
        wrong = int(read_code(envelope.payload.normalized_text) is not None)
        await self.records.refuse(sender, reason, event=event, wrong_codes=wrong)
        self.telemetry.count(SENDER_REFUSED, source_channel=sender.channel, reason=reason)
        log.info("sender refused", source_channel=sender.channel, reason=reason)
        automatic = _inbound(envelope).is_automatic(envelope.payload.raw)
        if decision.outcome is Outcome.PAIRING and sender.is_private and not automatic:
            # The one message that a stranger gets.
            pairing = await self.records.pairing(sender, secrets.choice)
            if pairing is not None:
                self.messages.offer_code(sender, shown(pairing.code), pairing.id)
        raise SenderRefused.on(sender.channel, reason)


def _inbound(envelope: IngestEnvelope) -> Inbound:
    return channel_of(envelope.source.channel).inbound or Inbound(providers=())


def _writing(envelope: IngestEnvelope) -> WritingSender:
    source, sender, thread = envelope.source, envelope.sender, envelope.event.external_thread_id
    # In a group the sender counts, and the group is never written to on a stranger's account.
    answers_sender = channel_of(source.channel).answers_go is AnswersGo.TO_SENDER
    private = answers_sender or thread in (None, sender.identity)
    return WritingSender(
        channel=source.channel,
        endpoint=source.endpoint_identity,
        identity=sender.identity,
        display_name=sender.display_name,
        conversation=sender.identity if answers_sender or thread is None else thread,
        is_private=private,
    )


class Notifier(Protocol):
    async def dispatch(self, caller: Caller | None, raw: Mapping[str, Any]) -> NotifyResponse: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderMessages:
    notifier: Notifier
    told: Callable[[UUID], Awaitable[None]]  # a stranger has its code
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def offer_code(self, sender: WritingSender, code: str, pairing_id: UUID) -> None:
        async def offer() -> None:
            response = await self._send(sender, OFFER.format(code=code), key=f"pairing:{pairing_id}")
            if response.error is None or not response.error.retryable:
                await self.told(pairing_id)

        self._soon(offer())

    def tell_owner(self, owner: WritingSender, approved: Mapping[str, Any] | None, *, code: str, event: str) -> None:
        words = APPROVED.format(**approved) if approved else NO_SUCH_CODE.format(code=code)
        self._soon(self._send(owner, words, key=f"approval:{owner.endpoint}:{event}"))

    def welcome_owner(self, owner: WritingSender, *, event: str) -> None:
        self._soon(self._send(owner, WELCOME.format(channel=owner.channel), key=f"owner:{owner.endpoint}:{event}"))

    async def drain(self, timeout_s: float) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)

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

    def _soon(self, sending: Coroutine[Any, Any, Any]) -> None:
        async def send() -> None:
            try:
                await sending
            except Exception as error:
                log.error("a word of the door was lost", error=error)

        task = asyncio.create_task(send())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
