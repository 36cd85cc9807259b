"""What is submitted: numbered notify.v1 requests whose text carries the number, so that the providers can be asked."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

Channel = Literal["telegram", "email"]

ORIGINS = ("health", "finance", "travel", "general", "relationship")
FIRST_CHAT = 50_000  # not the owner's: what Messenger tells the owner is no message of ours
CHATS = 200
MAILBOXES = 50
MAIL_SHARE = 0.25
REPLY_SHARE = 0.4
REPEAT_SHARE = 0.15  # submitted again after the answer, as a caller does that lost its own memory

_NUMBER = re.compile(r"chaos-(\d+)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRequest:
    """One message and how it is asked for."""

    number: int
    key: str
    channel: Channel
    notify: dict[str, Any]
    request_id: UUID
    repeated: bool


def make_requests(
    count: int, *, dice: random.Random, new_id: Callable[[], UUID], now: datetime
) -> list[DeliveryRequest]:
    return [_request(number, dice, new_id(), now) for number in range(count)]


def number_in(text: str) -> int | None:
    found = _NUMBER.search(text)
    return int(found[1]) if found else None


def route(request: DeliveryRequest, *, subrequest_id: UUID, now: datetime) -> dict[str, Any]:
    """The route.v1 that carries the request, as Switchboard makes it; each submission is a new one."""
    context = request.notify.get("request_context") or {
        "request_id": str(request.request_id),
        "received_at": now.isoformat(),
        "source_channel": "mcp",
        "source_endpoint_identity": "switchboard",
        "source_sender_identity": request.notify["origin_butler"],
    }
    return {
        "schema_version": "route.v1",
        "request_context": context,
        "input": {
            "prompt": "Execute outbound delivery request through Messenger.",
            "context": {"notify_request": request.notify, "authenticated_origin": request.notify["origin_butler"]},
        },
        "subrequest": {"subrequest_id": str(subrequest_id), "segment_id": f"notify-{subrequest_id}"},
        "target": {"butler": "messenger"},
    }


def _request(number: int, dice: random.Random, request_id: UUID, now: datetime) -> DeliveryRequest:
    channel: Channel = "email" if dice.random() < MAIL_SHARE else "telegram"
    key = f"chaos-{number}"
    notify: dict[str, Any] = {
        "schema_version": "notify.v1",
        "origin_butler": dice.choice(ORIGINS),
        "idempotency_key": key,
        "delivery": {"intent": "send", "channel": channel, "message": f"chaos-{number} and some words"},
    }
    if channel == "email":
        recipient = f"person{dice.randrange(MAILBOXES)}@example.org"
        notify["delivery"] |= {"recipient": recipient, "subject": f"About chaos-{number}"}
    elif dice.random() < REPLY_SHARE:
        notify["delivery"]["intent"] = "reply"
        notify["request_context"] = _conversation(FIRST_CHAT + dice.randrange(CHATS), request_id, now)
    else:
        notify["delivery"]["recipient"] = str(FIRST_CHAT + dice.randrange(CHATS))
    return DeliveryRequest(
        number=number,
        key=key,
        channel=channel,
        notify=notify,
        request_id=request_id,
        repeated=dice.random() < REPEAT_SHARE,
    )


def _conversation(chat: int, request_id: UUID, now: datetime) -> dict[str, Any]:
    return {
        "request_id": str(request_id),
        "received_at": now.isoformat(),
        "source_channel": "telegram",
        "source_endpoint_identity": "chaos_bot",
        "source_sender_identity": str(chat),
        "source_thread_identity": str(chat),
    }
