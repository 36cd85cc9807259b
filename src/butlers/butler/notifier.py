"""The only way a butler speaks: a `notify.v1` handed to Switchboard."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from butlers.butler.transport import Transport
from butlers.channels.registry import channel_of, outbound_names
from butlers.contracts.envelope import Channel, RequestContext
from butlers.contracts.notify import Delivery, NotifyContext, NotifyEnvelope, NotifyResponse

# Where an answer goes when its source cannot be answered on its own channel (an API or MCP call): to the owner.
OWNER_CHANNEL: Channel = outbound_names()[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifier:
    butler: str
    transport: Transport

    async def notify(self, envelope: NotifyEnvelope) -> NotifyResponse:
        raw = await self.transport.call("switchboard", "notify.dispatch", envelope.to_wire())
        return NotifyResponse.parse(raw)

    async def answer(self, context: RequestContext, message: str, *, key: str) -> NotifyResponse:
        """Answer a request where it came from; the key makes a repeated answer the same one."""
        replies = channel_of(context.source_channel).can_answer(context.source_thread_identity)
        channel = context.source_channel if replies else OWNER_CHANNEL
        return await self.notify(
            NotifyEnvelope(
                origin_butler=self.butler,
                delivery=Delivery(intent="reply" if replies else "send", channel=channel, message=message),
                request_context=NotifyContext.answering(context),
                idempotency_key=key,
            )
        )

    async def send(
        self,
        message: str,
        *,
        channel: Channel,
        recipient: str | None = None,
        contact_id: UUID | None = None,
        subject: str | None = None,
        key: str | None = None,
    ) -> NotifyResponse:
        """Say something unasked: to a recipient, a contact, or else the owner."""
        return await self.notify(
            NotifyEnvelope(
                origin_butler=self.butler,
                delivery=Delivery(
                    intent="send", channel=channel, message=message, recipient=recipient, subject=subject
                ),
                contact_id=contact_id,
                idempotency_key=key,
            )
        )
