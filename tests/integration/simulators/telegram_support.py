"""What the Telegram simulator's tests share: a served simulator and a plain HTTP hand to move it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from butlers.channels.telegram.simulator import TelegramSimulator, serve_telegram
from butlers.channels.telegram.simulator.control import Post, Posted, post
from butlers.channels.telegram.simulator.methods import METHODS, Call, Params
from butlers.channels.telegram.simulator.model import FaultKind, User
from butlers.channels.telegram.simulator.state import SimulatedTelegram
from butlers.clock import Clock, SystemClock

DEADLINE = 10.0  # seconds a test waits for a signal before it fails
TOKEN = "42:unit-test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """Calls the Bot API as a bot and the control API as the tester."""

    simulator: TelegramSimulator
    client: httpx2.AsyncClient

    async def bot(self, method: str, **params: Any) -> dict[str, Any]:
        reply = await self.client.post(f"/bot{self.simulator.token}/{method}", json=params)
        body: dict[str, Any] = reply.json()
        assert body["ok"] is (reply.status_code == 200)
        assert body["ok"] or body["error_code"] == reply.status_code
        return body

    async def control(self, verb: str, path: str, body: Any = None) -> dict[str, Any]:
        reply = await self.client.request(verb, f"/control{path}", json=body)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    async def says(self, text: str, user_id: int = 5, **more: Any) -> dict[str, Any]:
        body = {"chat_id": user_id, "from": {"id": user_id, "first_name": "Ann"}, "text": text, **more}
        return await self.control("POST", "/messages", body)

    async def fault(self, method: str, kind: FaultKind, **more: Any) -> None:
        await self.control("POST", "/faults", {"method": method, "kind": kind.value, **more})

    async def texts(self, chat_id: int = 5) -> list[str]:
        return [line["text"] for line in await self.lines(chat_id)]

    async def lines(self, chat_id: int = 5) -> list[dict[str, Any]]:
        transcript = await self.control("GET", f"/chats/{chat_id}/transcript")
        lines: list[dict[str, Any]] = transcript["messages"]
        return lines

    async def poll_waits(self) -> None:
        """Return when a long poll has reached the simulator and hangs."""
        bot_id = next(iter(self.simulator.world.state.bots))
        await until(lambda: self.simulator.polls.is_waiting(bot_id))


@contextlib.asynccontextmanager
async def serving(clock: Clock | None = None, **options: Any) -> AsyncIterator[Hand]:
    async with (
        serve_telegram(port=0, clock=clock or SystemClock(), **options) as simulator,
        httpx2.AsyncClient(base_url=simulator.base_url, timeout=DEADLINE, trust_env=False) as client,
    ):
        yield Hand(simulator=simulator, client=client)


async def until(condition: Callable[[], bool]) -> None:
    """Give the loop its turns until something has become true."""
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0)


def says(telegram: SimulatedTelegram, text: str, user_id: int = 5, **more: Any) -> Posted:
    """A user's message, without HTTP."""
    sender = User(id=user_id, first_name="Ann")
    wish: dict[str, Any] = {"chat_id": user_id, "sender": sender, "text": text, **more}
    return post(telegram, next(iter(telegram.state.bots.values())), Post(**wish))


def calls(telegram: SimulatedTelegram, method: str, **params: Any) -> Any:
    """A bot's call, without HTTP."""
    bot = next(iter(telegram.state.bots.values()))
    return METHODS[method](Call(world=telegram, bot=bot, params=Params(params)))
