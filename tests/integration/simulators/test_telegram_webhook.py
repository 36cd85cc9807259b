"""Updates by webhook: delivered with the secret, tried again, given up in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from butlers.channels.telegram.simulator.api import SECRET_HEADER, WebhookRetry
from tests.integration.simulators.telegram_support import DEADLINE, Hand, serving, until

QUICK = WebhookRetry(first_seconds=0.01, longest_seconds=0.02, attempts=4)


@dataclass(slots=True, kw_only=True)
class Receiver:
    """A bot's own web server, which fails as often as it is told."""

    url: str = ""
    failures: int = 0
    seen: asyncio.Queue[tuple[str | None, dict[str, Any]]] = field(default_factory=asyncio.Queue)

    async def hear(self, request: Request) -> Response:
        await self.seen.put((request.headers.get(SECRET_HEADER), await request.json()))
        self.failures -= 1
        return Response(status_code=500 if self.failures >= 0 else 200)

    async def next(self) -> tuple[str | None, dict[str, Any]]:
        async with asyncio.timeout(DEADLINE):
            return await self.seen.get()


class Guest(uvicorn.Server):
    """A server that leaves the signals alone and says when it is up."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(uvicorn.Config(app, port=0, log_config=None, access_log=False))
        self.up = asyncio.Event()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = Guest(Starlette(routes=[Route("/hook", receiver.hear, methods=["POST"])]))
    running = asyncio.create_task(server.serve())
    async with asyncio.timeout(DEADLINE):
        await server.up.wait()
    port = server.servers[0].sockets[0].getsockname()[1]
    receiver.url = f"http://127.0.0.1:{port}/hook"
    yield receiver
    server.should_exit = True
    await running


async def test_an_update_arrives_with_the_secret(receiver: Receiver) -> None:
    async with serving(webhook_retry=QUICK) as hand:
        assert (await hand.bot("setWebhook", url=receiver.url, secret_token="s3cret_-"))["result"] is True
        told = await hand.says("hi")
        assert await receiver.next() == ("s3cret_-", told["update"])
        assert (await hand.bot("getWebhookInfo"))["result"]["url"] == receiver.url


async def test_what_waited_is_delivered_in_order_once_a_webhook_is_set(receiver: Receiver) -> None:
    async with serving(webhook_retry=QUICK) as hand:
        told = [(await hand.says(f"m{n}"))["update"] for n in range(3)]
        await hand.bot("setWebhook", url=receiver.url)
        assert [await receiver.next() for _ in told] == [(None, update) for update in told]


async def test_a_failed_delivery_is_tried_again(receiver: Receiver) -> None:
    receiver.failures = 2
    async with serving(webhook_retry=QUICK) as hand:
        await hand.bot("setWebhook", url=receiver.url, secret_token="again")
        first, second = (await hand.says("one"))["update"], (await hand.says("two"))["update"]
        heard = [(await receiver.next())[1] for _ in range(4)]
        assert heard == [first, first, first, second]
        info = (await hand.bot("getWebhookInfo"))["result"]
        assert info["last_error_message"] == "Wrong response from the webhook: 500 Internal Server Error"


async def test_an_update_is_given_up_after_its_attempts(receiver: Receiver) -> None:
    receiver.failures = QUICK.attempts
    async with serving(webhook_retry=QUICK) as hand:
        await hand.bot("setWebhook", url=receiver.url)
        poison, good = (await hand.says("poison"))["update"], (await hand.says("good"))["update"]
        heard = [(await receiver.next())[1] for _ in range(QUICK.attempts + 1)]
        assert heard == [poison] * QUICK.attempts + [good]


async def test_a_new_address_does_not_wait_for_the_old_ones_pause(receiver: Receiver) -> None:
    async with serving(webhook_retry=WebhookRetry(first_seconds=3600, longest_seconds=3600)) as hand:
        told = await hand.says("hi")
        await hand.bot("setWebhook", url="http://127.0.0.1:1/closed")
        bot = next(iter(hand.simulator.world.state.bots.values()))
        await until(lambda: bot.webhook_error is not None)
        await hand.bot("setWebhook", url=receiver.url)
        assert (await receiver.next())[1] == told["update"]


async def test_a_webhook_survives_a_restart_of_the_simulator(receiver: Receiver, tmp_path: Path) -> None:
    journal = tmp_path / "telegram.jsonl"
    never = WebhookRetry(first_seconds=3600, longest_seconds=3600)
    receiver.failures = 1
    async with serving(journal_path=journal, webhook_retry=never) as hand:
        await hand.bot("setWebhook", url=receiver.url, secret_token="kept")
        told = await hand.says("hi")
        await receiver.next()
    async with serving(journal_path=journal, webhook_retry=QUICK):
        assert await receiver.next() == ("kept", told["update"])


async def test_deleting_a_webhook_can_drop_what_waits() -> None:
    async with serving() as hand:
        await hand.bot("setWebhook", url="http://127.0.0.1:1/closed")
        await hand.says("hi")
        assert (await hand.bot("getWebhookInfo"))["result"]["pending_update_count"] == 1
        await hand.bot("deleteWebhook", drop_pending_updates=True)
        assert (await hand.bot("getUpdates"))["result"] == []


@pytest.mark.parametrize(
    ("params", "description"),
    [
        ({"url": "ftp://x"}, "Bad Request: bad webhook: An HTTPS URL must be provided for webhook"),
        ({"url": "http://["}, "Bad Request: bad webhook: invalid URL"),
        ({"url": "http://x/", "secret_token": "a b"}, "Bad Request: secret token contains unallowed characters"),
        ({"url": "http://x/", "secret_token": "a" * 257}, "Bad Request: secret token is too long"),
        ({"url": "http://x/", "allowed_updates": "{}"}, "Bad Request: can't parse allowed_updates JSON object"),
    ],
)
async def test_what_set_webhook_refuses(params: dict[str, Any], description: str) -> None:
    async with serving() as hand:
        assert (await refused(hand, params)) == description
        assert (await hand.bot("getWebhookInfo"))["result"]["url"] == ""


async def refused(hand: Hand, params: dict[str, Any]) -> str:
    return str((await hand.bot("setWebhook", **params))["description"])
