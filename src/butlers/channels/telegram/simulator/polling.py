"""getUpdates, and the long poll.

A bot has at most one poll that waits. A newer one ends it with 409, as does a webhook; an update ends it with
something to give; its own time ends it with nothing.
"""

from __future__ import annotations

import asyncio

from butlers.channels.telegram.simulator.methods.call import Call
from butlers.channels.telegram.simulator.methods.webhooks import remember_allowed
from butlers.channels.telegram.simulator.model import ApiError, Wire
from butlers.channels.telegram.simulator.updates import fetch
from butlers.channels.telegram.simulator.world import World

MAX_TIMEOUT = 50  # seconds; longer wishes are cut, as in the real service
MAX_UPDATES = 100

_OTHER_POLL = "terminated by other getUpdates request; make sure that only one bot instance is running"
_WEBHOOK_SET = "terminated by setWebhook request"
_WEBHOOK_ACTIVE = "can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"


class Polls:
    def __init__(self, world: World) -> None:
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
