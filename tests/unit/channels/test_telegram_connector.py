"""What the Telegram connector makes of updates that cannot be stored, or that the ingest door cannot take."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from butlers.channels.telegram.connector import MOST_ATTEMPTS, TelegramConnector, to_envelope
from butlers.clock import SystemClock
from butlers.contracts.ingest import IngestEnvelope, IngestReply
from butlers.errors import InternalError, TargetUnavailable
from butlers.ids import Uuid7Factory
from tests.fuzz.scripted import scripted_server

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def update(number: int, text: str) -> dict[str, Any]:
    chat = {"id": 1000, "first_name": "A\x00nn"}
    return {"update_id": number, "message": {"message_id": 1, "chat": chat, "from": chat, "text": text}}


def test_what_cannot_be_stored_is_replaced_everywhere() -> None:
    envelope = to_envelope(update(1, "x\x00y \ud83d"), bot="bot", observed_at=NOW)

    assert envelope is not None
    assert envelope.payload.normalized_text == "x\ufffdy \ufffd"
    assert envelope.sender.display_name == "A\ufffdnn"
    assert "\\u0000" not in json.dumps(envelope.payload.raw)
    assert IngestEnvelope.parse(envelope.to_wire()).payload == envelope.payload


class Door:
    """Takes everything but the update that it stumbles over."""

    def __init__(self, problem: Exception) -> None:
        self.problem, self.asked, self._new_id = problem, Counter[str](), Uuid7Factory(SystemClock())

    async def ingest(self, envelope: IngestEnvelope) -> IngestReply:
        self.asked[envelope.payload.normalized_text] += 1
        if envelope.payload.normalized_text == "poison":
            raise self.problem
        return IngestReply(request_id=self._new_id(), duplicate=False)


async def polled(door: Door, polls: int) -> TelegramConnector:
    """The connector after some polls of a bot that has one poisonous update before a good one."""
    waiting = [update(1, "poison"), update(2, "good")]

    def script(path: str) -> bytes:
        if path.endswith("getMe"):
            return json.dumps({"ok": True, "result": {"username": "bot"}}).encode()
        return json.dumps({"ok": True, "result": waiting}).encode()

    async with scripted_server(script) as address:
        connector = TelegramConnector(token="1:x", base_url=address, ingest=door, clock=SystemClock(), poll_s=0)
        for _ in range(polls):
            with pytest.raises((InternalError, TargetUnavailable)):
                await connector.poll_once()
        if door.asked["poison"] == MOST_ATTEMPTS - 1:
            assert await connector.poll_once() == 2
        await connector.close()
    return connector


async def test_an_update_that_the_door_cannot_take_is_given_up_after_some_attempts() -> None:
    door = Door(RuntimeError("an unexpected fault"))
    connector = await polled(door, MOST_ATTEMPTS - 1)
    assert door.asked == {"poison": MOST_ATTEMPTS, "good": 1}
    assert (connector.counters.messages_failed, connector.counters.messages_ingested) == (1, 1)


async def test_an_outage_says_nothing_about_an_update() -> None:
    door = Door(TargetUnavailable("the database is away"))
    connector = await polled(door, 3 * MOST_ATTEMPTS)
    assert (door.asked["good"], connector.counters.messages_failed) == (0, 0)
