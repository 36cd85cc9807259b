"""The channel tools: what Messenger can say to the outside, by name. Nobody else has them.

    telegram_send_message  telegram_reply_to_message  email_send_message  email_reply_to_thread  sms_... chat_...

A call is a `notify.v1` in Messenger's own name and goes the same way as every other: key, approval, budgets, circuit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.channels.registry import channel_of
from butlers.contracts.envelope import Identity, RequestId, Text, Timestamp, Value
from butlers.contracts.notify import Delivery, Intent, NotifyEnvelope, NotifyResponse, Priority
from butlers.errors import ClassifiedError
from butlers.messenger.delivery import channel_tool
from butlers.messenger.intake import Intake
from butlers.operations.operation import SENDS

ME = "messenger"
Lineage = Callable[[UUID], Awaitable[Mapping[str, Any]]]  # Switchboard's record of a request; raises when unknown


class _MessageArguments(Value):
    message: Text = Field(description="the text; light Markdown is rendered where the channel can")
    idempotency_key: Identity | None = Field(
        default=None, description="a name for this message: a repeat with the same key is not sent again"
    )
    not_after: Timestamp | None = Field(default=None, description="of no use later than this: RFC 3339 with an offset")
    identity_scope: Literal["bot", "user"] = Field(
        default="bot", description="bot: the system's own account; user: the owner's"
    )


class SendArguments(_MessageArguments):
    recipient: Identity | None = Field(
        default=None, description="the channel's own address; absent, and without contact_id: the owner"
    )
    contact_id: UUID | None = Field(default=None, description="the contact to write to, instead of an address")
    priority: Priority = Field(default="normal", description="what goes first when there is a queue")


class ReplyArguments(_MessageArguments):
    """Which request is answered; where the answer goes is Switchboard's knowledge and not the caller's."""

    request_id: RequestId = Field(description="the request that is answered: a UUID of version 7")


class _WithSubject(Value):
    subject: Identity | None = Field(default=None, description="the subject line, on channels that have one")


class SendMailArguments(SendArguments, _WithSubject):
    pass


class ReplyMailArguments(ReplyArguments, _WithSubject):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTools:
    intake: Intake
    channels: Collection[str]  # served ones, with their scope
    lineage: Lineage

    def tools(self) -> list[Tool]:
        served = sorted({channel.partition(".")[0] for channel in self.channels})
        return [tool for channel in served for tool in (self._send_tool(channel), self._reply_tool(channel))]

    def _send_tool(self, channel: str) -> Tool:
        async def send(_caller: Caller, arguments: SendArguments) -> dict[str, Any]:
            contact = str(arguments.contact_id) if arguments.contact_id else None
            notify = _envelope(channel, "send", arguments, contact_id=contact, priority=arguments.priority)
            return await self._submit(notify, arguments.identity_scope, None)

        return Tool(
            name=f"{channel}_send_message",
            description=f"Send a message by {channel} to an address, a contact or the owner.",
            arguments=SendMailArguments if channel_of(channel).has_subject else SendArguments,
            returns=NotifyResponse,
            hints=SENDS,
            handler=send,
            owner=ME,
        )

    def _reply_tool(self, channel: str) -> Tool:
        async def reply(_caller: Caller, arguments: ReplyArguments) -> dict[str, Any]:
            known = await self.lineage(arguments.request_id)
            notify = _envelope(channel, "reply", arguments, request_context=dict(known["request_context"]))
            return await self._submit(notify, arguments.identity_scope, known["source_event"])

        return Tool(
            name=channel_of(channel).reply_tool,
            description=f"Answer a message that came by {channel} where it was asked.",
            arguments=ReplyMailArguments if channel_of(channel).has_subject else ReplyArguments,
            returns=NotifyResponse,
            hints=SENDS,
            handler=reply,
            owner=ME,
        )

    async def _submit(
        self, notify: NotifyEnvelope, identity_scope: str, source_event: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        tools = (channel_tool(notify),)
        try:
            answer = await self.intake.submit(
                notify, source_event=source_event, tools=tools, identity_scope=identity_scope
            )
        except ClassifiedError as error:
            # Where a delivery is on record, the error is the whole response, with its id.
            error.partial = (error.partial or {}).get("notify_response")
            raise
        response: dict[str, Any] = answer["notify_response"]
        return response


def _envelope(channel: str, intent: Intent, arguments: SendArguments | ReplyArguments, **more: Any) -> NotifyEnvelope:
    delivery = Delivery.model_validate(
        {
            "intent": intent,
            "channel": channel,
            "message": arguments.message,
            "recipient": getattr(arguments, "recipient", None),
            "subject": getattr(arguments, "subject", None),
        }
    )
    return NotifyEnvelope.parse(
        {
            "schema_version": "notify.v1",
            "origin_butler": ME,
            "delivery": delivery.to_wire(),
            "idempotency_key": arguments.idempotency_key,
            "not_after": arguments.not_after.isoformat() if arguments.not_after else None,
            **more,
        }
    )
