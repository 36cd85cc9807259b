"""The update queue of a bot.

numbering    one up from the last; after a silent week the next number is drawn anew
keeping      a day, then an update is gone whether it was fetched or not
fetching     offset n > 0: forget what is below n, give what is left
             offset n < 0: forget all but the last -n
             an offset far above the newest number is one from before a renumbering: it forgets nothing
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx2

from butlers.channels.telegram.simulator.methods import Call, remember_allowed
from butlers.channels.telegram.simulator.model import ApiError, Update, Webhook, Wire
from butlers.channels.telegram.simulator.state import BotState, SimulatedTelegram, drop, drop_expired, fetch
from butlers.http_client import BoundedAsyncClient, authorities

MAX_TIMEOUT = 50  # seconds; longer wishes are cut, as in the real service
MAX_UPDATES = 100

_OTHER_POLL = "terminated by other getUpdates request; make sure that only one bot instance is running"
_WEBHOOK_SET = "terminated by setWebhook request"
_WEBHOOK_ACTIVE = "can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"


class Polls:
    def __init__(self, world: SimulatedTelegram) -> None:
        self._world = world
        self._waiting: dict[int, asyncio.Future[None]] = {}  # bot id -> its one waiting poll
        self._closed = False
        world.listen(self._heard)

    async def get_updates(self, call: Call) -> list[Wire]:
        if call.bot.webhook is not None:
            raise _conflict(_WEBHOOK_ACTIVE)
        self._end(call.bot.id, _conflict(_OTHER_POLL))
        remember_allowed(call)
        timeout = call.params.within("timeout", 0, 0, MAX_TIMEOUT)
        offset = call.params.integer("offset") or 0
        found = self._fetch(call, offset)
        if found or not timeout or self._closed:
            return found
        await self._wait(call.bot.id, timeout)
        # "The last n" was meant at the time of asking: it must not count again after the wait.
        return self._fetch(call, max(offset, 0))

    def is_waiting(self, bot_id: int) -> bool:
        """Whether a long poll of this bot hangs right now."""
        return bot_id in self._waiting

    def close(self) -> None:
        """Let every waiting poll go home empty-handed, and none wait again."""
        self._closed = True
        for bot_id in list(self._waiting):
            self._end(bot_id, None)

    def _fetch(self, call: Call, offset: int) -> list[Wire]:
        limit = call.params.within("limit", MAX_UPDATES, 1, MAX_UPDATES)
        return [update.to_wire() for update in fetch(self._world, call.bot, offset, limit)]

    async def _wait(self, bot_id: int, timeout: int) -> None:  # noqa: ASYNC109 - it is the API's own parameter
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[bot_id] = waiter
        timer = asyncio.ensure_future(self._world.clock.sleep(timeout))
        try:
            await asyncio.wait({waiter, timer}, return_when=asyncio.FIRST_COMPLETED)
            if waiter.done():
                waiter.result()
        finally:
            timer.cancel()
            if self._waiting.get(bot_id) is waiter:
                del self._waiting[bot_id]

    def _heard(self, bot_id: int, change: str) -> None:
        self._end(bot_id, _conflict(_WEBHOOK_SET) if self._world.state.bots[bot_id].webhook else None)

    def _end(self, bot_id: int, error: ApiError | None) -> None:
        waiter = self._waiting.pop(bot_id, None)
        if waiter is None or waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


def _conflict(what: str) -> ApiError:
    return ApiError(409, f"Conflict: {what}")


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

    def __init__(self, world: SimulatedTelegram, retry: WebhookRetry) -> None:
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
