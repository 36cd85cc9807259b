"""Telegram's side: updates that no client expects, and answers that are none."""

from __future__ import annotations

from typing import Any

from butlers.channels.adapter import NotSent, Outgoing, Sent
from butlers.channels.telegram.adapter import TelegramChannel
from butlers.channels.telegram.connector import TelegramConnector
from butlers.clock import SystemClock
from butlers.contracts.ingest import IngestEnvelope, IngestReply
from butlers.errors import ClassifiedError
from butlers.ids import Uuid7Factory
from tests.fuzz.corpus import ANSWERS, UPDATES
from tests.fuzz.mutation import as_json, mangled, mutated
from tests.fuzz.scripted import scripted_server
from tests.fuzz.tries import Findings, dice_of, tries

AT_ONCE = 20


class _Ingest:
    def __init__(self) -> None:
        self._new_id = Uuid7Factory(SystemClock())
        self.accepted = 0

    async def ingest(self, envelope: IngestEnvelope) -> IngestReply:
        IngestEnvelope.parse(as_json(envelope.to_wire()))
        self.accepted += 1
        return IngestReply(request_id=self._new_id(), duplicate=False)


class _Wire:
    def leaving(self, part: int = 1) -> None:
        return

    async def part_sent(self, part: int, provider_delivery_id: str) -> None:
        return


async def test_no_update_stops_the_connector() -> None:
    """A poll may fail with a class, but one bad update must not fail the poll: it would come again for ever."""
    findings, number, ingest = Findings("updates"), 0, _Ingest()

    def script(path: str) -> bytes:
        if path.endswith("getMe"):
            return as_json({"ok": True, "result": {"username": "bot"}})
        return as_json({"ok": True, "result": [_update(number + offset) for offset in range(AT_ONCE)]})

    async with scripted_server(script) as address:
        connector = TelegramConnector(token="1:x", base_url=address, ingest=ingest, clock=SystemClock(), poll_s=0)
        while number < tries("updates"):
            with findings.watch(number):
                await connector.poll_once()
            number += AT_ONCE
        await connector.close()
    findings.check()
    assert ingest.accepted > tries("updates") / 20


def _update(number: int) -> Any:
    dice = dice_of("updates", number)
    return mutated(dice.choice(UPDATES), dice)


async def test_no_answer_to_a_poll_is_unhandled() -> None:
    findings, number = Findings("poll answers"), 0

    def script(path: str) -> bytes:
        if path.endswith("getMe"):
            return as_json({"ok": True, "result": {"username": "bot"}})
        return _answer(number)

    async with scripted_server(script) as address:
        connector = TelegramConnector(token="1:x", base_url=address, ingest=_Ingest(), clock=SystemClock(), poll_s=0)
        for number in range(tries("answers") // 2):
            with findings.watch(number, ClassifiedError):
                await connector.poll_once()
        await connector.close()
    findings.check()


async def test_no_answer_to_a_message_is_unhandled() -> None:
    findings, number, new_id = Findings("answers"), 0, Uuid7Factory(SystemClock())
    async with scripted_server(lambda _path: _answer(number), status=lambda: _status(number)) as address:
        channel = TelegramChannel(token="1:x", base_url=address)
        for number in range(tries("answers") // 2):
            outgoing = Outgoing(
                delivery_id=new_id(), idempotency_key=f"fuzz-{number}", intent="send", target="1000", message="hi"
            )
            with findings.watch(number):
                result = await channel.attempt(outgoing, timeout_s=5, wire=_Wire())
                if not isinstance(result, Sent | NotSent):
                    findings.add(number, f"answered with {type(result).__name__}")
                else:
                    as_json(dict(result.response))
        await channel.close()
    findings.check()


def _answer(number: int) -> bytes:
    dice = dice_of("answers", number)
    answer = dice.choice((*ANSWERS, {"ok": True, "result": [dict(update) for update in UPDATES]}))
    return mangled(as_json(answer), dice) if dice.random() < 0.4 else as_json(mutated(answer, dice))


def _status(number: int) -> int:
    return dice_of("status", number).choice((200, 200, 200, 201, 400, 403, 404, 429, 500, 502))
