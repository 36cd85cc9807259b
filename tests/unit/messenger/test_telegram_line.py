"""How far a request got, and what that proves."""

from __future__ import annotations

from collections.abc import Sequence

import httpx2
import pytest

from butlers.channels.adapter import Certainty
from butlers.channels.telegram.adapter import Answer, Call, Line, Phase, Silence

HEADERS = ("connection.connect_tcp.started", "http11.send_request_headers.started")
BODY = ("http11.send_request_body.started",)
AWAITED = ("http11.send_request_body.complete", "http11.receive_response_headers.started")
CALL = Call(method="sendMessage", body={"chat_id": "1", "text": "x"})


class Breaking(httpx2.AsyncBaseTransport):
    """Goes through these events, then breaks."""

    def __init__(self, events: Sequence[str]) -> None:
        self._events = events

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        for event in self._events:
            await request.extensions["trace"](event, {})
        raise httpx2.ReadError("broken")


class Notes:
    def __init__(self, refuses: bool = False) -> None:
        self.left: list[int] = []
        self._refuses = refuses

    def leaving(self, part: int = 1) -> None:
        if self._refuses:
            raise OSError("disk full")
        self.left.append(part)

    async def part_sent(self, part: int, provider_delivery_id: str) -> None:
        raise AssertionError("not the line's business")


async def asked(events: Sequence[str], notes: Notes) -> Answer | Silence:
    async with httpx2.AsyncClient(transport=Breaking(events), base_url="http://127.0.0.1/bot1:x/") as client:
        return await Line(client=client, wire=notes, timeout_s=5, deadline=None).ask(CALL, part=3)


@pytest.mark.parametrize(
    ("events", "phase", "certainty"),
    [
        ((), Phase.CONNECTING, Certainty.NOT_SENT),
        (HEADERS, Phase.CONNECTING, Certainty.NOT_SENT),
        ((*HEADERS, *BODY), Phase.BODY_LEAVING, Certainty.UNCERTAIN),
        ((*HEADERS, *BODY, *AWAITED), Phase.ANSWER_AWAITED, Certainty.UNCERTAIN),
        # The headers could not be written; the client looks for an early answer all the same.
        ((*HEADERS, AWAITED[-1]), Phase.CONNECTING, Certainty.NOT_SENT),
    ],
)
async def test_certainty_follows_from_the_phase(events: Sequence[str], phase: Phase, certainty: Certainty) -> None:
    notes = Notes()
    silence = await asked(events, notes)
    assert isinstance(silence, Silence)
    assert (silence.phase, silence.certainty) == (phase, certainty)
    assert notes.left == ([] if certainty is Certainty.NOT_SENT else [3])
    assert silence.error.message == "Telegram is unreachable (ReadError)"


async def test_the_body_does_not_leave_when_that_cannot_be_put_on_record() -> None:
    with pytest.raises(OSError, match="disk full"):
        await asked((*HEADERS, *BODY), Notes(refuses=True))
