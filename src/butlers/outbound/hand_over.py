"""A message as it leaves: rendered for its channel, and handed to Switchboard as `notify.v1`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import pydantic

from butlers.channels.registry import channel_of
from butlers.contacts.people import PersonRecord
from butlers.contracts.envelope import field_errors
from butlers.contracts.notify import Delivery, NotifyEnvelope, NotifyResponse
from butlers.errors import ClassifiedError, NotFound, ValidationError
from butlers.outbound.delivery import DeliveryReport
from butlers.outbound.digests import digest_text
from butlers.outbound.records import Records, Work

Dispatch = Callable[[str, NotifyEnvelope], Awaitable[NotifyResponse]]  # in the name of a butler
StatusOf = Callable[[UUID], Awaitable[Mapping[str, Any]]]  # the answer of messenger_delivery_status
UnsubscribeUrl = Callable[[str, str, str], str | None]  # person, event type, channel


class RenderedText(Protocol):
    @property
    def subject(self) -> str | None: ...

    @property
    def text(self) -> str: ...

    @property
    def html(self) -> str | None: ...


class Renderer(Protocol):
    async def render(
        self, template_id: str, *, version: int, locale: str | None, channel: str, variables: Mapping[str, Any]
    ) -> RenderedText: ...

    async def render_text(self, body: str, variables: Mapping[str, Any]) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    text: str
    subject: str | None = None
    html: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchboardHandOver:
    """The way out of the delivery runtime."""

    renderer: Renderer
    records: Records  # for what a digest carries
    dispatch: Dispatch
    status_of: StatusOf
    butlers: Collection[str]  # may speak in their own name
    speaker: str  # speaks for every other sender
    unsubscribe_url: UnsubscribeUrl = lambda _person, _event, _channel: None

    async def hand_over(self, work: Work, person: PersonRecord) -> DeliveryReport:
        try:
            envelope = await self._envelope(work, person)
        except pydantic.ValidationError as error:  # what was rendered cannot be sent, such as an empty text
            fields = tuple(field_errors(error))
            raise ValidationError(f"{fields[0].field} {fields[0].error}", fields=fields) from None
        try:
            response = await self.dispatch(envelope.origin_butler, envelope)
        except ClassifiedError as error:
            return _refused(error.error_class.value, error.message, error.retryable, error.retry_after)
        return report_of(response)

    async def status(self, delivery_id: UUID) -> DeliveryReport:
        try:
            found = await self.status_of(delivery_id)
        except ClassifiedError as error:
            # Nothing is known, so nothing changes: it is asked for again.
            return DeliveryReport(status="in_progress", delivery_id=delivery_id, error=error.message)
        return DeliveryReport(
            status=str(found["status"]),
            delivery_id=delivery_id,
            error_class=found.get("terminal_error_class"),
            error=found.get("terminal_error_message"),
            is_retryable=bool(found.get("terminal_retryable")),
        )

    async def _envelope(self, work: Work, person: PersonRecord) -> NotifyEnvelope:
        document, channel = work.document, channel_of(work.channel)
        content = await self.render(work, person)
        sender = document.sender_id
        return NotifyEnvelope(
            origin_butler=sender if sender in self.butlers else self.speaker,
            delivery=Delivery(
                intent="send",
                channel=work.channel,
                message=content.text,
                subject=content.subject if channel.has_subject else None,
                **self._of_mail(work, content),
            ),
            contact_id=person.id,
            idempotency_key=f"{work.key}:{work.sends}",
            not_after=document.not_after,
            priority=document.priority.value,
            max_attempts=1,  # the runtime decides about each further one: quiet hours, preferences, its retry policy
        )

    def _of_mail(self, work: Work, content: Content) -> dict[str, Any]:
        if not channel_of(work.channel).has_subject:
            return {}
        url = self.unsubscribe_url(work.recipient_id, work.document.event, work.channel)
        return {name: value for name, value in (("html", content.html), ("unsubscribe_url", url)) if value}

    async def render(self, work: Work, person: PersonRecord) -> Content:
        """The content for the channel of the work; raises when it cannot be rendered."""
        if work.is_digest:
            return await self._digest(work, person)
        return await self._content(work, person, work.channel)

    async def _digest(self, work: Work, person: PersonRecord) -> Content:
        members = await self.records.members(work.message_id)
        if not members:
            raise NotFound.of("digest", "carries no message")
        contents = [await self._content(each, person, work.channel) for each in members]
        if len(contents) == 1:
            return contents[0]
        event = work.document.event
        return Content(
            text=digest_text(event, [each.text for each in contents]), subject=f"{len(contents)} messages: {event}"
        )

    async def _content(self, work: Work, person: PersonRecord, channel: str) -> Content:
        document = work.document
        if document.template_id is None:
            text = document.body or ""
            text = await self.renderer.render_text(text, document.variables) if document.variables else text
            return Content(text=text, subject=document.subject)
        rendered = await self.renderer.render(
            document.template_id,
            version=document.template_version or 1,
            locale=document.locale or person.locale,
            channel=channel,
            variables=document.variables,
        )
        return Content(text=rendered.text, subject=document.subject or rendered.subject, html=rendered.html)


def report_of(response: NotifyResponse) -> DeliveryReport:
    """What an answer of Switchboard means for the worker."""
    error, delivery = response.error, response.delivery
    if delivery is None:
        return _refused(
            error.error_class if error else "internal_error",
            error.message if error else "no answer",
            error.retryable if error else False,
            error.retry_after_seconds if error else None,
        )
    return DeliveryReport(
        status=delivery.status,
        delivery_id=delivery.delivery_id,
        error_class=error.error_class if error else None,
        error=error.message if error else None,
        is_retryable=error.retryable if error else False,
        retry_after=error.retry_after_seconds if error else None,
    )


def _refused(error_class: str, message: str, is_retryable: bool, retry_after: float | None) -> DeliveryReport:
    return DeliveryReport(
        status="refused", error_class=error_class, error=message, is_retryable=is_retryable, retry_after=retry_after
    )
