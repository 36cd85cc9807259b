"""Two independent client libraries, each talking to a simulator as it would to Telegram."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from butlers.channels.telegram.simulator import TelegramSimulator
from tests.lazy import LazyModule

if TYPE_CHECKING:
    import aiogram
    import telegram
else:
    aiogram, telegram = LazyModule("aiogram"), LazyModule("telegram")


def aiogram_bot(simulator: TelegramSimulator, *, token: str | None = None) -> aiogram.Bot:
    """To be used as a context: leaving it closes the session."""
    session = aiogram.client.session.aiohttp.AiohttpSession(
        api=aiogram.client.telegram.TelegramAPIServer.from_base(simulator.base_url)
    )
    return aiogram.Bot(token or simulator.token, session=session)


def ptb_without_start(simulator: TelegramSimulator, *, token: str | None = None) -> telegram.Bot:
    return telegram.Bot(
        token or simulator.token,
        base_url=f"{simulator.base_url}/bot",
        request=_transport(),
        get_updates_request=_transport(),
    )


@contextlib.asynccontextmanager
async def ptb_bot(simulator: TelegramSimulator) -> AsyncIterator[telegram.Bot]:
    async with ptb_without_start(simulator) as bot:
        yield bot


def _transport() -> telegram.request.HTTPXRequest:
    return telegram.request.HTTPXRequest(httpx_kwargs={"trust_env": False})
