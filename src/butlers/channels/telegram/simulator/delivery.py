"""Pushing updates to a bot's webhook, one at a time and in order.

Anything but a 2xx answer is a failure: the same update is tried again, later and later, until it has had all its
attempts; then it is dropped, so that one poisonous update cannot stop the rest for ever.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx2

from butlers.channels.telegram.simulator.model import Update, Webhook
from butlers.channels.telegram.simulator.state import BotState
from butlers.channels.telegram.simulator.updates import drop, drop_expired
from butlers.channels.telegram.simulator.world import World
from butlers.http_client import BoundedAsyncClient
from butlers.trust import authorities

SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 - a header's name


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRetry:
    first_seconds: float = 1.0
    longest_seconds: float = 60.0
    attempts: int = 30  # for one update, the first included
    answer_seconds: float = 30.0  # how long the receiver may take

    def pause_after(self, attempt: int) -> float:
        return min(self.longest_seconds, self.first_seconds * 2.0 ** min(attempt - 1, 32))


class WebhookDelivery:
    """Runs one task for each bot that has a webhook and something to tell."""

    def __init__(self, world: World, retry: WebhookRetry) -> None:
        self._world = world
        self._retry = retry
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._client: httpx2.AsyncClient | None = None  # made when first needed: it is slow to make
        self._stopped = False

    def start(self) -> None:
        self._world.listen(self._heard)
        for bot_id in self._world.state.bots:
            self._wake(bot_id)

    async def stop(self) -> None:
        self._stopped = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        if self._client is not None:
            await self._client.aclose()

    def _heard(self, bot_id: int, change: str) -> None:
        if change == "webhook_set" and (running := self._tasks.pop(bot_id, None)):
            # A new address must not wait for the old one's pause to end.
            running.cancel()
        self._wake(bot_id)

    def _wake(self, bot_id: int) -> None:
        running = self._tasks.get(bot_id)
        if self._stopped or (running and not running.done()):
            return
        if self._world.state.bots[bot_id].webhook is not None:
            self._tasks[bot_id] = asyncio.get_running_loop().create_task(self._drain(bot_id))

    def _http(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = BoundedAsyncClient(
                timeout=self._retry.answer_seconds, verify=authorities(trust_env=False), trust_env=False
            )
        return self._client

    async def _drain(self, bot_id: int) -> None:
        tried = (0, 0)  # update id, attempts
        while (work := self._next(bot_id)) is not None:
            bot, webhook, update = work
            attempt = tried[1] + 1 if tried[0] == update.update_id else 1
            tried = (update.update_id, attempt)
            problem = await _post(self._http(), webhook, update)
            if problem is not None:
                bot.webhook_error = (self._world.unix_time(), problem)
            if problem is None or attempt >= self._retry.attempts:
                self._done_with(bot_id, update)
            else:
                await self._world.clock.sleep(self._retry.pause_after(attempt))

    def _next(self, bot_id: int) -> tuple[BotState, Webhook, Update] | None:
        bot = self._world.state.bots[bot_id]
        drop_expired(self._world, bot)
        if bot.webhook is None or not bot.pending:
            return None
        return bot, bot.webhook, bot.pending[0]

    def _done_with(self, bot_id: int, update: Update) -> None:
        bot = self._world.state.bots[bot_id]
        if bot.pending and bot.pending[0].update_id == update.update_id:
            drop(self._world, bot, 1)


async def _post(client: httpx2.AsyncClient, webhook: Webhook, update: Update) -> str | None:
    """What went wrong, if anything."""
    headers = {SECRET_HEADER: webhook.secret_token} if webhook.secret_token else {}
    try:
        reply = await client.post(webhook.url, json=update.to_wire(), headers=headers)
    except httpx2.TimeoutException:
        return "Read timeout expired"
    except httpx2.HTTPError:
        return "Connection refused"
    if reply.is_success:
        return None
    return f"Wrong response from the webhook: {reply.status_code} {reply.reason_phrase}"
