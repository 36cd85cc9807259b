"""Injected faults: what the client sees, and what the world keeps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx2
import pytest
import uvloop

from butlers.channels.telegram.simulator.model import FaultKind
from butlers.clock import ManualClock
from tests.integration.simulators.telegram_clients import aiogram_bot, ptb_bot
from tests.integration.simulators.telegram_support import DEADLINE, Hand, serving, until
from tests.lazy import LazyModule

if TYPE_CHECKING:
    import aiogram
    import telegram
else:
    aiogram, telegram = LazyModule("aiogram"), LazyModule("telegram")


async def drops() -> None:
    async with serving() as hand:
        await hand.fault("sendMessage", FaultKind.DROP_BEFORE)
        with pytest.raises(httpx2.RemoteProtocolError):
            await hand.bot("sendMessage", chat_id=5, text="never arrives")
        await hand.fault("sendMessage", FaultKind.DROP_AFTER)
        with pytest.raises(httpx2.RemoteProtocolError):
            await hand.bot("sendMessage", chat_id=5, text="arrives unanswered")
        await hand.bot("sendMessage", chat_id=5, text="as usual")
        assert await hand.texts() == ["arrives unanswered", "as usual"]
        counts = (await hand.control("GET", "/requests"))["counts"]
        assert counts["sendMessage"] == {"dropped_before": 1, "dropped_after": 1, "accepted": 1}


async def test_a_dropped_connection_is_really_broken() -> None:
    await drops()


def test_a_dropped_connection_is_really_broken_under_uvloop() -> None:
    uvloop.run(drops())


async def test_dropping_leaves_no_complaint_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    await drops()
    assert [record.message for record in caplog.records if record.name.startswith("uvicorn")] == []


async def test_both_clients_see_a_network_error_while_the_message_stands() -> None:
    async with serving() as hand:
        await hand.fault("sendMessage", FaultKind.DROP_AFTER, times=2)
        async with ptb_bot(hand.simulator) as ptb, aiogram_bot(hand.simulator) as aio:
            with pytest.raises(telegram.error.NetworkError):
                await ptb.send_message(5, "from ptb")
            with pytest.raises(aiogram.exceptions.TelegramNetworkError):
                await aio.send_message(5, "from aiogram")
        assert await hand.texts() == ["from ptb", "from aiogram"]


async def test_a_delay_holds_the_call_back_and_nothing_else() -> None:
    clock = ManualClock()
    async with serving(clock) as hand:
        await hand.fault("sendMessage", FaultKind.DELAY, seconds=30)
        slow = asyncio.create_task(hand.bot("sendMessage", chat_id=5, text="slow"))
        await until(lambda: hand.simulator.world.faults.waiting() == ())
        assert (await hand.bot("sendMessage", chat_id=5, text="quick"))["ok"]
        assert not slow.done()
        clock.advance(30)
        async with asyncio.timeout(DEADLINE):
            assert (await slow)["ok"]
        assert await hand.texts() == ["quick", "slow"]


async def test_server_errors_and_throttling_accept_nothing() -> None:
    async with serving() as hand:
        await hand.fault("sendMessage", FaultKind.ERROR_5XX, status=502, description="Bad Gateway")
        assert await hand.bot("sendMessage", chat_id=5, text="x") == {
            "ok": False,
            "error_code": 502,
            "description": "Bad Gateway",
        }
        await hand.fault("*", FaultKind.TOO_MANY_REQUESTS, retry_after=9)
        reply = await hand.client.post(f"/bot{hand.simulator.token}/sendMessage", data={"chat_id": 5, "text": "x"})
        assert (reply.status_code, reply.headers["Retry-After"]) == (429, "9")
        assert reply.json()["parameters"] == {"retry_after": 9}
        assert await hand.texts() == []


async def test_a_fault_hits_as_often_as_it_was_told_and_only_its_chat() -> None:
    async with serving() as hand:
        await hand.fault("sendMessage", FaultKind.ERROR_5XX, times=2, chat_id=5)
        await hand.fault("sendMessage", FaultKind.ERROR_5XX, times=None, chat_id=6)
        assert [await outcome(hand, 5) for _ in range(4)] == [500, 500, 200, 200]
        assert [await outcome(hand, 6) for _ in range(4)] == [500] * 4
        assert await outcome(hand, 7) == 200
        assert (await hand.control("DELETE", "/faults")) == {"faults": []}
        assert await outcome(hand, 6) == 200


async def test_a_fault_may_let_calls_pass_first() -> None:
    async with serving() as hand:
        await hand.fault("sendMessage", FaultKind.ERROR_5XX, skip=2, times=2)
        assert [await outcome(hand, 5) for _ in range(5)] == [200, 200, 500, 500, 200]


async def test_any_refusal_can_be_asked_for() -> None:
    async with serving() as hand:
        await hand.fault("sendMessage", FaultKind.REFUSED, status=403, description="Forbidden: user is deactivated")
        assert await hand.bot("sendMessage", chat_id=5, text="x") == {
            "ok": False,
            "error_code": 403,
            "description": "Forbidden: user is deactivated",
        }
        await hand.fault("sendMessage", FaultKind.REFUSED, status=429)
        body = await hand.bot("sendMessage", chat_id=5, text="x")
        assert (body["error_code"], "parameters" in body) == (429, False)
        assert await hand.texts() == []


async def test_unreadable_markup_strikes_only_markup() -> None:
    async with serving() as hand:
        await hand.fault("sendMessage", FaultKind.UNPARSABLE)
        assert (await hand.bot("sendMessage", chat_id=5, text="plain"))["ok"]
        body = await hand.bot("sendMessage", chat_id=5, text="<b>x</b>", parse_mode="HTML")
        assert body["description"].startswith("Bad Request: can't parse entities")
        assert (await hand.bot("sendMessage", chat_id=5, text="<b>x</b>", parse_mode="HTML"))["ok"]
        assert await hand.texts() == ["plain", "x"]


async def test_a_gateway_speaks_html() -> None:
    async with serving() as hand:
        await hand.fault("sendMessage", FaultKind.GATEWAY, status=502)
        reply = await hand.client.post(f"/bot{hand.simulator.token}/sendMessage", json={"chat_id": 5, "text": "x"})
        assert (reply.status_code, reply.headers["content-type"].partition(";")[0]) == (502, "text/html")
        assert await hand.texts() == []


async def test_a_server_error_below_500_is_not_one() -> None:
    async with serving() as hand:
        wish = {"method": "sendMessage", "kind": "error_5xx", "status": 404}
        assert (await hand.client.post("/control/faults", json=wish)).status_code == 422


async def outcome(hand: Hand, chat_id: int) -> int:
    body = await hand.bot("sendMessage", chat_id=chat_id, text="x")
    return 200 if body["ok"] else int(body["error_code"])


async def test_updates_whose_answer_was_dropped_come_again() -> None:
    async with serving() as hand:
        told = await hand.says("hi")
        await hand.fault("getUpdates", FaultKind.DROP_AFTER)
        with pytest.raises(httpx2.RemoteProtocolError):
            await hand.bot("getUpdates")
        assert (await hand.bot("getUpdates"))["result"] == [told["update"]]
