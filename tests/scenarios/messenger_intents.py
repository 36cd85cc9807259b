"""Wishes at random: messages, answers and reactions, to requests on record and to others; most are in order."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from tests.scenarios.messenger_door import lineage, wish
from tests.scenarios.messenger_faults import ADDRESSES, CHATS, KNOWN_CHAT, KNOWN_KEY, ORIGINS
from tests.system import RunningSystem

EMOJI = ("\N{THUMBS UP SIGN}", "\N{THUMBS UP SIGN}", "\N{WHITE HEAVY CHECK MARK}")  # Telegram does not know the last
MACHINES = ({"Auto-Submitted": "auto-replied"}, {"List-Id": "<news.example>"}, {"Return-Path": "<>"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    running: RunningSystem
    dice: random.Random
    contact: UUID  # a person without any identifier

    async def next(self) -> dict[str, Any]:
        """A notify.v1; the request that it answers may be on record with Switchboard."""
        if self._chance(0.05):
            return self._said_before()
        made = await self._answer() if self._chance(0.45) else self._send()
        if self._chance(0.1):
            made["idempotency_key"] = uuid4().hex
        if self._chance(0.1):
            made["not_after"] = (self.running.clock.now() + timedelta(seconds=60)).isoformat()
        if self._chance(0.1):
            made = self.dice.choice((_without_message, _shouting, _odd, _unserved, _anonymous))(made)
        return made

    def _chance(self, share: float) -> bool:
        return self.dice.random() < share

    def _said_before(self) -> dict[str, Any]:
        origin = self.dice.choice(ORIGINS)
        return wish("known", origin_butler=origin, recipient=KNOWN_CHAT, idempotency_key=KNOWN_KEY)

    def _send(self) -> dict[str, Any]:
        dice, fields = self.dice, dict[str, Any]()
        if self._chance(0.2):
            fields = {"channel": "email", "recipient": dice.choice(ADDRESSES), "subject": "s"}
        elif self._chance(0.8):
            fields = {"recipient": dice.choice(CHATS)}
        if self._chance(0.1):
            fields["contact_id"] = str(dice.choice((self.contact, self.contact, uuid4())))
        return wish("hello", origin_butler=dice.choice(ORIGINS), **fields)

    async def _answer(self) -> dict[str, Any]:
        """To a request that is on record or is not, about which the truth is told or is not."""
        channel = self.dice.choice(("telegram", "telegram", "telegram", "email"))
        context = self._mailed() if channel == "email" else self._written()
        if self._chance(0.8):
            await on_record(self.running, context, self._mail() if channel == "email" else self._update())
        if self._chance(0.1):
            context["source_sender_identity"] = "somebody else"
        if self._chance(0.1):
            del context["source_thread_identity"]
        fields = {"recipient": "elsewhere"} if self._chance(0.1) else {}
        if channel == "telegram" and self._chance(0.4):
            fields |= {"intent": "react", "emoji": self.dice.choice(EMOJI)}
        given = {"intent": "reply", "channel": channel, "origin_butler": self.dice.choice(ORIGINS)} | fields
        return wish("an answer", request_context=context, **given)

    def _written(self) -> dict[str, Any]:
        chat = self.dice.choice(CHATS)
        return self._lineage(source_sender_identity=chat, source_thread_identity=chat)

    def _mailed(self) -> dict[str, Any]:
        return self._lineage(
            source_channel="email",
            source_endpoint_identity="butler@butlers.example",
            source_sender_identity=self.dice.choice(ADDRESSES),
            source_thread_identity="thread",
        )

    def _lineage(self, **source: str) -> dict[str, Any]:
        # Before or after somebody was suppressed: whoever writes again may be answered.
        received = self.running.clock.now() - timedelta(seconds=self.dice.choice((0, 90)))
        return lineage(self.running, received_at=received.isoformat(), **source)

    def _update(self) -> dict[str, Any] | None:
        """What Telegram handed in; sometimes it names no message that could be reacted to."""
        return {"message": {"message_id": 7}} if self._chance(0.8) else None

    def _mail(self) -> dict[str, Any]:
        machine = self.dice.choice(MACHINES) if self._chance(0.3) else {}
        return {"headers": {"Message-ID": f"<{uuid4().hex}@elsewhere.example>", "Subject": "a question", **machine}}


async def on_record(running: RunningSystem, context: dict[str, Any], raw: dict[str, Any] | None) -> None:
    """Switchboard took the request in and is done with it."""
    await running.database.execute(
        "insert into switchboard.message_inbox (request_id, received_at, request_context, raw_payload,"
        " normalized_text, policy_tier, dedupe_key, submitted_by, lifecycle_state, schema_version, updated_at)"
        " values ($1, ($2::jsonb ->> 'received_at')::timestamptz, $2, $3, 'a question', 'default', $1::uuid::text,"
        " 'tests', 'parsed', 'ingest.v1', now())",
        UUID(context["request_id"]),
        context,
        raw,
    )


def _without_message(made: dict[str, Any]) -> dict[str, Any]:
    return made | {"delivery": made["delivery"] | {"message": "  "}}


def _shouting(made: dict[str, Any]) -> dict[str, Any]:
    return made | {"delivery": made["delivery"] | {"intent": "shout"}}


def _odd(made: dict[str, Any]) -> dict[str, Any]:
    return made | {"surprise": 1}


def _unserved(made: dict[str, Any]) -> dict[str, Any]:
    return made | {"delivery": made["delivery"] | {"channel": "sms"}}


def _anonymous(made: dict[str, Any]) -> dict[str, Any]:
    return made | {"origin_butler": ""}
