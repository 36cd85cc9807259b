"""From a checked `notify.v1` to a delivery that admission can decide about: target, content, key, order.

(seed 001 section 6.2)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from html import unescape
from typing import Any, Protocol
from uuid import UUID

from butlers.channels.channel import AnswersGo, Channel, Threads
from butlers.channels.registry import canonical_address, channel_of
from butlers.clock import Clock
from butlers.contacts import Contact
from butlers.contracts.envelope import invalid
from butlers.contracts.notify import Delivery, NotifyEnvelope
from butlers.messenger.delivery import Decision, NewDelivery
from butlers.reliability.idempotency import caller_key, delivery_key
from butlers.telemetry.redaction import REDACTED, SecretFilter

DEFAULT_SUBJECT = "Message"
_REPLY = re.compile(r"(?:re|aw|sv|antw)\s?(?:[\[(]\d{1,3}[\])])?\s?:", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>")
_TOKEN = re.compile(r"\[[^\[\]]{1,64}\]")
SECRETS_RULE = "secrets"


class AddressBook(Protocol):
    async def identifier(self, contact_id: UUID, channel: str) -> str | None: ...

    async def owner(self) -> Contact | None: ...

    async def get(self, contact_id: UUID) -> Contact | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    target: str  # canonical
    address: str  # as it was given
    how: str  # in plain words


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    contacts: AddressBook
    channels: Collection[str]  # served ones, with their scope: telegram.bot
    own_address: str  # of the mailbox, which never answers itself
    clock: Clock
    new_id: Callable[[], UUID]
    secrets: SecretFilter = field(default_factory=SecretFilter)  # takes them out of what leaves

    async def prepare(
        self, notify: NotifyEnvelope, source_event: Mapping[str, Any] | None, *, identity_scope: str = "bot"
    ) -> NewDelivery:
        """Check what only the whole can tell, and make the delivery. Raises `validation_error`."""
        channel = channel_of(notify.delivery.channel)
        if f"{channel.name}.{identity_scope}" not in self.channels:
            served = ", ".join(sorted(self.channels))
            raise invalid("delivery.channel", f"is not served here in scope {identity_scope}; served: {served}")
        if notify.delivery.intent == "react" and not channel.can_react:
            raise invalid("delivery.intent", f"react is not possible on {channel.name}")
        resolution = await resolve_target(notify, self.contacts)
        delivery, found = without_secrets(notify.delivery, self.secrets)
        if found:
            notify = notify.model_copy(update={"delivery": delivery})
        new = self._delivery(notify, channel, resolution, source_event, identity_scope)
        refuses = channel.outbound.refuses_answer if channel.outbound is not None and new.brakes else None
        if refuses is not None and (reason := refuses(new.source_event, self.own_address)) is not None:
            raise invalid("delivery.intent", f"must not be a reply: {reason}")
        if not found:
            return new
        detail = f"{found} of them replaced by {REDACTED}: what the system keeps secret does not leave"
        return new.decided(Decision(at=self.clock.now(), rule=SECRETS_RULE, verdict="redacted", detail=detail))

    def addressed(self, new: NewDelivery, address: str) -> NewDelivery:
        """The same delivery, now that its contact's identifier is known."""
        target = canonical_address(new.notify.delivery.channel, address)
        key = _key(new.notify, target) or new.idempotency_key
        ordering = _ordering_key(new.notify, target, new.id)
        return replace(new, target=target, address=address, idempotency_key=key, ordering_key=ordering)

    def _delivery(
        self,
        notify: NotifyEnvelope,
        channel: Channel,
        resolution: Resolved | None,
        source_event: Mapping[str, Any] | None,
        identity_scope: str,
    ) -> NewDelivery:
        identity, now, origin = self.new_id(), self.clock.now(), notify.origin_butler
        target = address = None
        if resolution is not None:
            target, address = resolution.target, resolution.address
            how = Decision(at=now, rule="target", verdict="resolved", detail=resolution.how)
        else:
            missing = "the contact has no identifier for the channel"
            how = Decision(at=now, rule="target", verdict="missing", detail=missing)
        key = _key(notify, target if target is not None else f"contact:{notify.contact_id}")
        message = notify.delivery.message
        return NewDelivery(
            id=identity,
            # Without an id and without a key nothing tells a repeat from a second request: every call is a new one.
            idempotency_key=key or f"none-{identity}",
            notify=notify,
            target=target,
            address=address,
            identity_scope=identity_scope,
            message=message if channel.has_subject else with_origin(message, origin),
            subject=_subject(notify, source_event) if channel.has_subject else None,
            ordering_key=_ordering_key(notify, target or "", identity),
            source_event=source_event,
            duplicate_detection=key is not None,
            status="pending" if target is not None else "pending_missing_identifier",
            decisions=(Decision(at=now, rule="origin", verdict="verified"), how),
        )


def without_secrets(delivery: Delivery, secrets: SecretFilter) -> tuple[Delivery, int]:
    """The delivery as it may leave, and how many secrets were in it.

    HTML may spell a secret with entities or tags in it. Such HTML does not leave at all, the text does; so with an
    address that holds one.
    """
    message, found = secrets(delivery.message)
    changed: dict[str, str | None] = {"message": message}
    if delivery.subject is not None:
        changed["subject"], count = secrets(delivery.subject)
        found += count
    if delivery.html is not None:
        html, count = secrets(delivery.html)
        hidden = sum(secrets(unescape(shown))[1] for shown in (html, _TAG.sub("", html)))
        changed["html"] = None if hidden else html
        found += count + hidden
    if delivery.unsubscribe_url is not None:
        _, count = secrets(delivery.unsubscribe_url)
        changed["unsubscribe_url"] = None if count else delivery.unsubscribe_url
        found += count
    return (delivery.model_copy(update=changed) if found else delivery), found


def with_origin(text: str, origin: str) -> str:
    """The text with `[origin]` in front, once."""
    mark = f"[{origin}]"
    return text if text.startswith(mark) else f"{mark} {text}"


def subject_with_origin(subject: str | None, origin: str) -> str:
    mark = f"[{origin}]"
    subject = (subject or "").strip() or DEFAULT_SUBJECT
    return subject if mark in subject else f"{mark} {subject}"


def reply_subject(*, own: str | None, parent: str | None, origin: str) -> str | None:
    """The subject of an answer: the butler's own words, else those it answers, with the origin's token once.

    None when neither says anything; the caller then has words for that.
    """
    subject = _text(own).strip() or _text(parent).strip()
    token = f"[{origin}]"
    if not subject:
        return None
    return reply_once(subject if token in subject else f"{token} {subject}")


def reply_once(subject: str) -> str:
    """`Re:` exactly once and in front, tokens behind it, none of them twice."""
    tokens, rest = _leading(subject)
    unique = [token for token in dict.fromkeys(tokens) if token not in rest]
    return " ".join(["Re:", *unique, *([rest] if rest else [])])


def _leading(subject: str) -> tuple[list[str], str]:
    tokens: list[str] = []
    rest = subject.strip()
    while match := _REPLY.match(rest) or _TOKEN.match(rest):
        if match.re is _TOKEN:
            tokens.append(match[0])
        rest = rest[match.end() :].strip()
    return tokens, rest


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _subject(notify: NotifyEnvelope, source_event: Mapping[str, Any] | None) -> str:
    origin, own = notify.origin_butler, notify.delivery.subject
    if notify.delivery.intent == "reply":
        parent = (source_event or {}).get("subject")
        return reply_subject(own=own, parent=parent, origin=origin) or f"Re: [{origin}] {DEFAULT_SUBJECT}"
    return subject_with_origin(own, origin)


def _ordering_key(notify: NotifyEnvelope, target: str, identity: UUID) -> str:
    """What must not overtake what: a chat, or a thread of mails. A mail that starts a thread waits for none."""
    channel = notify.delivery.channel
    if channel_of(channel).threads is not Threads.CHAIN:
        return f"{channel}:{target}"
    context = notify.request_context
    thread = context.source_thread_identity if context is not None else None
    return f"{channel}:{target}:{thread or identity}"


def _key(notify: NotifyEnvelope, target: str) -> str | None:
    """A caller's own key says better than the content what a repeat is; the rest counts in either case."""
    request_id = str(notify.request_id) if notify.request_id is not None else None
    if notify.idempotency_key is not None:
        return caller_key(
            request_id=request_id,
            origin_butler=notify.origin_butler,
            intent=notify.delivery.intent,
            channel=notify.delivery.channel,
            target_identity=target,
            idempotency_key=notify.idempotency_key,
        )
    if request_id is None:
        return None
    return delivery_key(
        request_id=request_id,
        origin_butler=notify.origin_butler,
        intent=notify.delivery.intent,
        channel=notify.delivery.channel,
        target_identity=target,
        message=notify.delivery.emoji or notify.delivery.message,
        subject=notify.delivery.subject,
        html=notify.delivery.html,
        unsubscribe_url=notify.delivery.unsubscribe_url,
    )


async def resolve_target(notify: NotifyEnvelope, contacts: AddressBook) -> Resolved | None:
    """None: the contact has no identifier for the channel."""
    channel, address = notify.delivery.channel, notify.delivery.recipient
    if notify.delivery.intent != "send":
        address, how = _answered_address(notify), "the conversation that is answered"
    elif notify.contact_id is not None:
        address, how = await contacts.identifier(notify.contact_id, channel), f"the contact's {channel} identifier"
        if address is None and await contacts.get(notify.contact_id) is None:
            raise invalid("contact_id", "no such contact")
    elif address is not None:
        how = "the recipient was named"
    else:
        owner, how = await contacts.owner(), "nobody was named, so it is for the owner"
        address = await contacts.identifier(owner.id, channel) if owner else None
        if address is None:
            raise invalid("delivery.recipient", f"is required: no owner with a {channel} identifier is configured")
    if address is None:
        return None
    return Resolved(target=canonical_address(channel, address), address=address.strip(), how=how)


def _answered_address(notify: NotifyEnvelope) -> str:
    context, delivery = notify.request_context, notify.delivery
    if context is None or context.source_channel != delivery.channel:
        raise invalid("delivery.channel", "a reply leaves by the channel the request came from")
    # A chat is answered where it takes place; a mail goes back to the person.
    to_sender = channel_of(delivery.channel).answers_go is AnswersGo.TO_SENDER
    lineage = context.source_sender_identity if to_sender else context.source_thread_identity
    if lineage is None:
        raise invalid("request_context.source_thread_identity", "is required to answer")
    answered, named = canonical_address(delivery.channel, lineage), delivery.recipient
    if named is not None and canonical_address(delivery.channel, named) != answered:
        raise invalid("delivery.recipient", "does not agree with the conversation that is answered")
    return lineage
