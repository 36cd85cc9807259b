"""Who may come in by the door: for whom a caller may speak, and whether the sender may write in (decision 0083).

    grants of the caller's token -> forbidden
    contacts -> decide -> served:   on into the inbox; the owner's "approve CODE" is done here and ends here
                       -> pairing:  a code for the stranger, once; refused
                       -> refused:  counted and listed, and not a word

What a refused sender wrote is not stored. The refusal is final for its message, so the connector's checkpoint moves on.
As long as the owner has no identity on a channel, the chat that sends the owner's code becomes the owner's.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from butlers.butler.identity import Caller, Grant
from butlers.channels.channel import AnswersGo, Inbound
from butlers.channels.registry import channel_of, channels, own_names, providers_of
from butlers.contracts.ingest import IngestEnvelope
from butlers.contracts.notify import Delivery, NotifyEnvelope, NotifyResponse
from butlers.errors import FieldError, Forbidden, SenderRefused
from butlers.operations.operation import Role
from butlers.switchboard.ingress.ingress import dedupe_identity
from butlers.switchboard.requests.signals import SELF, Notifier
from butlers.switchboard.senders import (
    Known,
    Policy,
    Reason,
    SenderPolicies,
    SenderRecords,
    WritingSender,
    decide,
    read_approval,
    read_code,
    shown,
)
from butlers.telemetry import get_logger
from butlers.telemetry.catalogue import SENDER_REFUSED
from butlers.telemetry.telemetry import Telemetry

log = get_logger("butlers.senders")

MOST_WRONG_CODES = 5  # of one sender, before its codes are no longer looked at
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
class SenderGate:
    policies: SenderPolicies
    records: SenderRecords
    messages: SenderMessages
    telemetry: Telemetry

    async def admit(self, envelope: IngestEnvelope, submitted_by: Caller) -> bool:
        """True: to be worked on. False: it was a command to the door and is done.

        Raises `Forbidden` when the caller may not speak for the source, `SenderRefused` when the sender may not write.
        """
        source, own = envelope.source, f"{submitted_by.role.value}:{submitted_by.name}"
        # A caller that speaks for itself has its own name, which no other channel's identities look like.
        is_itself = source.endpoint_identity == own and envelope.sender.identity == own
        if submitted_by.role is Role.OPERATOR or (is_itself and source.channel in own_names()):
            return True
        authorize(submitted_by, envelope)
        policy = self.policies.channels.get(source.channel, Policy.OPEN)
        inbound = channel_of(source.channel).inbound
        confirms = inbound.confirms_sender if inbound is not None else None
        authenticated = True
        if confirms is not None and self.policies.mail_authenticated:
            authenticated = confirms(envelope.sender.identity, envelope.payload.raw, self.policies.mail_server)
        if policy is Policy.OPEN and authenticated:
            return True
        sender = _writing(envelope)
        known = await self.records.known(sender.channel, sender.identity)
        reason = decide(policy, known, authenticated=authenticated)
        if reason is None:
            return known is not Known.OWNER or not await self._approves(envelope, sender)
        if known is Known.STRANGER and await self._becomes_owner(envelope, sender):
            return False
        offers_code = policy is Policy.PAIRING and reason is Reason.UNKNOWN
        await self._refuse(envelope, sender, reason, submitted_by, offers_code=offers_code)
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
        self,
        envelope: IngestEnvelope,
        sender: WritingSender,
        reason: Reason,
        submitted_by: Caller,
        *,
        offers_code: bool,
    ) -> None:
        event = dedupe_identity(envelope, submitted_by=submitted_by).key
        wrong = int(read_code(envelope.payload.normalized_text) is not None)
        await self.records.refuse(sender, reason, event=event, wrong_codes=wrong)
        self.telemetry.count(SENDER_REFUSED, source_channel=sender.channel, reason=reason)
        log.info("sender refused", source_channel=sender.channel, reason=reason)
        automatic = _inbound(envelope).is_automatic(envelope.payload.raw)
        if offers_code and sender.is_private and not automatic:
            # The one message that a stranger gets.
            pairing = await self.records.pairing(sender, secrets.choice)
            if pairing is not None:
                pairing_id, code = pairing
                self.messages.offer_code(sender, shown(code), pairing_id)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderMessages:
    notifier: Notifier
    on_offered: Callable[[UUID], Awaitable[None]]  # a stranger has its code
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def offer_code(self, sender: WritingSender, code: str, pairing_id: UUID) -> None:
        async def offer() -> None:
            response = await self._send(sender, OFFER.format(code=code), key=f"pairing:{pairing_id}")
            if response.error is None or not response.error.retryable:
                await self.on_offered(pairing_id)

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


def authorize(caller: Caller, envelope: IngestEnvelope) -> None:
    """Raises `Forbidden` unless a grant of the caller covers the source and the sender that the envelope names."""
    source, sender = envelope.source, envelope.sender.identity
    of_channel = [grant for grant in _grants(caller) if grant.channel == source.channel]
    if not of_channel:
        raise _not_itself(caller, envelope)
    endpoint = source.endpoint_identity.casefold()
    at_endpoint = [grant for grant in of_channel if grant.endpoint is None or grant.endpoint.casefold() == endpoint]
    if not at_endpoint:
        allowed = _listed(grant.endpoint or "" for grant in of_channel)
        raise _forbidden(caller, ("source.endpoint_identity", f"must be {allowed} for this token"))
    senders = [name for grant in at_endpoint for name in grant.senders]
    if all(grant.senders for grant in at_endpoint) and sender.casefold() not in {name.casefold() for name in senders}:
        raise _forbidden(caller, ("sender.identity", f"must be {_listed(senders)} for this token"))
    in_thread = channel_of(source.channel).answers_go is AnswersGo.TO_CONVERSATION
    if caller.role is not Role.CONNECTOR and in_thread and envelope.event.external_thread_id not in (None, sender):
        problem = f"must be the sender's own ({sender!r}) or absent: only the channel's connector knows other ones"
        raise _forbidden(caller, ("event.external_thread_id", problem))


def may_report_for(caller: Caller, connector_type: str, endpoint: str) -> bool:
    """Whether a connector's token is for this connector: its type names the channel, or a provider of it."""
    return any(
        (grant.endpoint is None or grant.endpoint.casefold() == endpoint.casefold())
        and connector_type in {grant.channel, *providers_of(grant.channel)}
        for grant in _grants(caller)
    )


def _grants(caller: Caller) -> tuple[Grant, ...]:
    """A butler also has the channels that it brings in itself: Messenger reads the mailbox that it writes from."""
    if caller.role is not Role.BUTLER:
        return caller.grants
    own = (
        Grant(channel=name)
        for name, channel in channels().items()
        if channel.inbound is not None and channel.inbound.read_by == caller.name
    )
    return (*caller.grants, *own)


def _not_itself(caller: Caller, envelope: IngestEnvelope) -> Forbidden:
    """Every field in which the envelope is not the caller's own."""
    own = f"{caller.role.value}:{caller.name}"
    granted = sorted({grant.channel for grant in _grants(caller)})
    own_channels = own_names()
    allowed = [*own_channels, *(channel for channel in granted if channel not in own_channels)]
    wrong: list[tuple[str, str]] = []
    if envelope.source.channel not in allowed:
        wrong.append(("source.channel", f"must be {_listed(allowed)} for this token"))
    if envelope.source.endpoint_identity != own:
        wrong.append(("source.endpoint_identity", f"must be {own!r} for this token"))
    if envelope.sender.identity != own:
        wrong.append(("sender.identity", f"must be {own!r} for this token"))
    return _forbidden(caller, *wrong)


def _forbidden(caller: Caller, *wrong: tuple[str, str]) -> Forbidden:
    fields = tuple(FieldError(field=field, error=error) for field, error in wrong)
    problems = "; ".join(f"{field.field} {field.error}" for field in fields)
    how = "an operator grants more with: butlers token issue NAME --channel CHANNEL --endpoint ENDPOINT"
    who = f"{caller.role.value}:{caller.name}"
    return Forbidden(f"{who} may not speak for this source: {problems} ({how})", fields=fields)


def _listed(names: Iterable[str]) -> str:
    return " or ".join(repr(name) for name in dict.fromkeys(names))
