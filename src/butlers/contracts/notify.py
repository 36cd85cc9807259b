"""notify.v1 and notify_response.v1: a butler asks for a message to leave, Messenger says what became of it."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import AfterValidator, Field, model_validator

from butlers.channels.channel import AnswersGo
from butlers.channels.registry import channel_of
from butlers.contracts.delivery_state import DeliveryStatus
from butlers.contracts.envelope import (
    Channel,
    Envelope,
    Identity,
    RequestContext,
    RequestId,
    SourceChannel,
    Text,
    Timestamp,
    TraceContext,
    Value,
)
from butlers.contracts.route import WireError
from butlers.errors import NotFound

Intent = Literal["send", "reply", "react"]
Priority = Literal["urgent", "high", "normal", "low"]

_SOURCE = ("source_channel", "source_endpoint_identity", "source_sender_identity", "source_thread_identity")
REPLY_NEEDS = ("request_id", "source_channel", "source_endpoint_identity", "source_sender_identity")


class NotifyContext(Value):
    """The lineage of an answer. A proactive message has none, so every field may be absent."""

    request_id: RequestId | None = Field(
        default=None, description="the id that the request got at the door: a UUID of version 7"
    )
    received_at: Timestamp | None = Field(
        default=None, description="when the door took the request in: RFC 3339 with an offset"
    )
    source_channel: SourceChannel | None = Field(default=None, description="the channel that the request came in by")
    source_endpoint_identity: Identity | None = Field(default=None, description="the bot or mailbox that it came in by")
    source_sender_identity: Identity | None = Field(
        default=None, description="who wrote it, as the channel names people"
    )
    source_thread_identity: Identity | None = Field(
        default=None, description="the conversation it belongs to, as the channel names it"
    )
    trace_context: TraceContext = Field(
        default_factory=dict, description="W3C trace context headers, passed on unchanged"
    )

    @classmethod
    def answering(cls, context: RequestContext) -> Self:
        """The lineage of an answer to a request."""
        return cls(**context.model_dump())


_URL = re.compile(r"[!#-;=?-Z\[\]_a-z~]+")  # what may stand between < and >: RFC 3986, section 2
LONGEST_URL = 900  # characters: the header's line holds 998
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def check_unsubscribe_url(url: str) -> str:
    """The address as it is, if a reader's mail program may post to it."""
    if len(url) > LONGEST_URL or _URL.fullmatch(url) is None:
        raise ValueError(f"must be an address of at most {LONGEST_URL} characters without spaces")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("must be an address") from None
    if not host or parts.username is not None or parts.password is not None:
        raise ValueError("must name a host, and no user")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _LOOPBACK):
        raise ValueError("must begin with https://")
    return url


class Delivery(Value):
    intent: Intent = Field(
        description="send: unasked; reply: an answer to request_context; react: an emoji on the message"
    )
    channel: Channel = Field(description="the channel it leaves by")
    message: Text = Field(description="the text; light Markdown is rendered where the channel can")
    recipient: Identity | None = Field(
        default=None,
        description="an address of the channel; absent: the contact, the sender of the request, or the owner",
    )
    subject: Identity | None = Field(default=None, description="the subject line, on channels that have one")
    emoji: Identity | None = Field(default=None, description="the reaction, with intent react and only then")
    html: Text | None = Field(
        default=None, description="the same message as HTML, beside its text; only on channels that show it"
    )
    unsubscribe_url: Annotated[str, AfterValidator(check_unsubscribe_url)] | None = Field(
        default=None, description="an https address that unsubscribes the recipient when a mail program posts to it"
    )

    @model_validator(mode="after")
    def _channel_can(self) -> Self:
        channel = channel_of(self.channel)
        if self.html is not None and not channel.has_html:
            raise ValueError(f"html is not possible on {channel.name}")
        if self.unsubscribe_url is not None and not channel.has_unsubscribe:
            raise ValueError(f"unsubscribe_url is not possible on {channel.name}")
        return self


class NotifyEnvelope(Envelope):
    VERSION = "notify.v1"

    schema_version: Literal["notify.v1"] = Field(default="notify.v1", description="which envelope this is")
    origin_butler: Identity = Field(description="the butler that speaks")
    delivery: Delivery = Field(description="what is to leave")
    request_context: NotifyContext | None = Field(
        default=None, description="the request that is answered; needed by reply and react"
    )
    contact_id: UUID | None = Field(default=None, description="the contact to write to, instead of an address")
    idempotency_key: Identity | None = Field(
        default=None, description="a name for this message: a repeat with the same key is not sent again"
    )
    not_after: Timestamp | None = Field(default=None, description="of no use later than this: RFC 3339 with an offset")
    priority: Priority = Field(default="normal", description="what goes first when there is a queue")
    max_attempts: int | None = Field(
        default=None,
        ge=1,
        le=20,
        description="at most so many attempts: the caller itself decides about more; absent: as the channel has it",
    )

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        intent, channel = self.delivery.intent, self.delivery.channel
        needed: tuple[str, ...] = () if intent == "send" else REPLY_NEEDS  # an answer needs the request it answers
        if needed and channel_of(channel).answers_go is AnswersGo.TO_CONVERSATION:
            needed = (*needed, "source_thread_identity")
        missing = [name for name in needed if getattr(self.request_context, name, None) is None]
        if missing:
            listed = ", ".join(f"request_context.{name}" for name in missing)
            raise ValueError(f"intent {intent} on {channel} needs {listed}")
        if (intent == "react") != (self.delivery.emoji is not None):
            raise ValueError("delivery.emoji goes with intent react, and only with it")
        return self

    def on_record(self, record: NotifyContext | None) -> Self:
        """As it goes on, given what is on record of its request. An answer needs a request, and may not tell another
        story of it; a message that merely names one we do not know keeps what it says of itself.
        """
        answers = self.delivery.intent != "send"
        if record is None:
            if answers:
                raise NotFound.of("request_context.request_id", "no such request: there is nothing to answer")
            return self
        claimed = self.request_context or NotifyContext()  # what it leaves out contradicts nothing
        if answers and any(getattr(claimed, name) not in (None, getattr(record, name)) for name in _SOURCE):
            raise NotFound.of("request_context", "no such request: it is on record with other words about its source")
        return self.model_copy(update={"request_context": record})

    @property
    def request_id(self) -> RequestId | None:
        return self.request_context.request_id if self.request_context else None


class NotifyResponseContext(Value):
    request_id: RequestId | None = Field(
        default=None, description="the id that the request got at the door: a UUID of version 7"
    )


class DeliveryOutcome(Value):
    channel: Channel = Field(description="the channel it left by")
    delivery_id: UUID = Field(description="the delivery, by its id")
    status: DeliveryStatus = Field(description="where the delivery stands")
    provider_delivery_id: str | None = Field(default=None, description="the provider's own id of the message")
    deduplicated: bool = Field(default=False, description="an earlier delivery answered for this one")
    duplicate_detection: bool = Field(
        default=True, description="false: no request_id and no key, so a repeat would be sent again"
    )
    action_id: UUID | None = Field(default=None, description="the pending action that somebody has to decide")


class NotifyResponse(Envelope):
    VERSION = "notify_response.v1"

    schema_version: Literal["notify_response.v1"] = Field(
        default="notify_response.v1", description="which envelope this is"
    )
    request_context: NotifyResponseContext = Field(
        default_factory=NotifyResponseContext, description="the request that the message belongs to"
    )
    status: Literal["ok", "error"] = Field(description="ok, or error with an error")
    delivery: DeliveryOutcome | None = Field(default=None, description="the delivery, where there is one")
    error: WireError | None = Field(default=None, description="what went wrong")

    @model_validator(mode="after")
    def _status_agrees(self) -> Self:
        if (self.status == "error") != (self.error is not None):
            raise ValueError("status error needs an error, status ok must have none")
        if self.status == "ok" and self.delivery is None:
            raise ValueError("status ok needs a delivery")
        return self
