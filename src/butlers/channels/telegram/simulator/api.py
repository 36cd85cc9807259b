"""The door of the Bot API, `/bot<token>/<method>`, the update queue behind `getUpdates`, and webhooks.

    token known? -> method known? -> read the parameters -> faults -> the method itself -> answer, or drop

Every call that reaches a known method is written to the request log once, with how it ended.

numbering    one up from the last; after a silent week the next number is drawn anew
keeping      a day, then an update is gone whether it was fetched or not
fetching     offset n > 0: forget what is below n, give what is left
             offset n < 0: forget all but the last -n
             an offset far above the newest number is one from before a renumbering: it forgets nothing
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import httpx2
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from butlers.channels.telegram.simulator.methods import METHODS, Call, Params, read_params, remember_allowed
from butlers.channels.telegram.simulator.model import ApiError, BotFault, FaultKind, Update, Webhook, Wire
from butlers.channels.telegram.simulator.state import BotState, SimulatedTelegram, drop, drop_expired, fetch
from butlers.http_client import BoundedAsyncClient, authorities
from butlers.simulators.engine import DroppedConnection

MAX_CALLS = 1000  # calls remembered for each method
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
        world.listen(self._on_change)

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

    def _on_change(self, bot_id: int, change: str) -> None:
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
        self._world.listen(self._on_change)
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

    def _on_change(self, bot_id: int, change: str) -> None:
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


class RequestLog:
    def __init__(self) -> None:
        self._sequence = 0
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._calls: defaultdict[str, deque[dict[str, Any]]] = defaultdict(lambda: deque(maxlen=MAX_CALLS))

    def add(self, *, at: str, method: str, chat_id: int | str | None, outcome: str, status: int | None) -> None:
        """`at`: when the call was answered. `outcome`: accepted, refused, dropped_before or dropped_after."""
        self._sequence += 1
        self._counts[method][outcome] += 1
        record = {"at": at, "method": method, "chat_id": chat_id, "outcome": outcome, "status": status}
        self._calls[method].append({"sequence": self._sequence, **record})

    def clear(self) -> None:
        self._counts.clear()
        self._calls.clear()

    def report(self, *, method: str | None, limit: int) -> dict[str, Any]:
        chosen = [record for name, calls in self._calls.items() if method in (None, name) for record in calls]
        return {
            "counts": {name: dict(counts) for name, counts in self._counts.items()},
            "requests": sorted(chosen, key=lambda record: record["sequence"])[-limit:],
        }


GET_UPDATES = "getUpdates"
_CANONICAL = {name.lower(): name for name in (*METHODS, GET_UPDATES)}
_TOKEN = re.compile(r"(?<![0-9])[0-9]+:[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BotApi:
    world: SimulatedTelegram
    polls: Polls
    log: RequestLog = field(default_factory=RequestLog)

    def routes(self) -> list[Route]:
        return [Route("/bot{token}/{method}", self.call, methods=["GET", "POST"])]

    async def call(self, request: Request) -> Response:
        try:
            bot = self._bot(request.path_params["token"])
            method = _CANONICAL.get(request.path_params["method"].lower())  # names are not case-sensitive
            if method is None:
                raise not_found()
            params = await read_params(request)
        except ApiError as error:
            return refusal(error)
        return await self._answer(method, Call(world=self.world, bot=bot, params=params))

    def _bot(self, token: str) -> BotState:
        bot = self.world.bot_of(token)
        if bot is None:
            # The real service does not even look at a token that cannot be one.
            raise ApiError(401, "Unauthorized") if _TOKEN.fullmatch(token) else not_found()
        return bot

    async def _answer(self, method: str, call: Call) -> Response:
        marked = bool(call.params.text("parse_mode"))
        chat_id = call.params.integer("chat_id")
        faults = self.world.faults.take(lambda fault: fault.hits(method, chat_id, marked=marked))
        kinds = {fault.kind for fault in faults}
        for fault in faults:
            if fault.kind is FaultKind.DELAY:
                await self.world.pauses.sleep(fault.seconds)
        if FaultKind.DROP_BEFORE in kinds:
            return self._dropped(method, call.params, "dropped_before")
        standing = next((reply for fault in faults if (reply := _instead(fault))), None)
        response = standing or await self._run(method, call)
        if FaultKind.DROP_AFTER in kinds:
            return self._dropped(method, call.params, "dropped_after")
        self._note(method, call.params, "accepted" if response.status_code == 200 else "refused", response)
        return response

    async def _run(self, method: str, call: Call) -> Response:
        try:
            result = await self.polls.get_updates(call) if method == GET_UPDATES else METHODS[method](call)
        except ApiError as error:
            return refusal(error)
        return JSONResponse({"ok": True, "result": result})

    def _dropped(self, method: str, params: Params, outcome: str) -> Response:
        self._note(method, params, outcome, None)
        return DroppedConnection()

    def _note(self, method: str, params: Params, outcome: str, response: Response | None) -> None:
        self.log.add(
            at=self.world.clock.now().isoformat(),
            method=method,
            chat_id=params.integer("chat_id") or params.text("chat_id"),
            outcome=outcome,
            status=response.status_code if response else None,
        )


def _instead(fault: BotFault) -> Response | None:
    if fault.kind is FaultKind.GATEWAY:
        page = f"<html><body><h1>{fault.status} {fault.phrase}</h1></body></html>"
        return HTMLResponse(page, status_code=fault.status)
    error = fault.as_error()
    return refusal(error) if error else None


def refusal(error: ApiError) -> Response:
    retry_after = error.parameters.get("retry_after")
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return JSONResponse(error.to_wire(), status_code=error.code, headers=headers)


def not_found() -> ApiError:
    return ApiError(404, "Not Found")
