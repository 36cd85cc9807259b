"""The door of the Bot API: `/bot<token>/<method>`.

    token known? -> method known? -> read the parameters -> faults -> the method itself -> answer, or drop

Every call that reaches a known method is written to the request log once, with how it ended.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from dataclasses import asdict, dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from butlers.channels.telegram.simulator.faults import Fault, FaultKind
from butlers.channels.telegram.simulator.methods import METHODS, Call, Params, read_params
from butlers.channels.telegram.simulator.model import ApiError
from butlers.channels.telegram.simulator.state import BotState, SimulatedTelegram
from butlers.channels.telegram.simulator.updates import Polls
from butlers.simulators.connection import DroppedConnection

KEPT = 1000  # calls remembered for each method


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    sequence: int
    at: str  # RFC 3339, when the call was answered
    method: str
    chat_id: int | str | None
    outcome: str  # accepted | refused | dropped_before | dropped_after
    status: int | None  # None: no answer was sent


class RequestLog:
    def __init__(self) -> None:
        self._sequence = 0
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._calls: defaultdict[str, deque[RequestRecord]] = defaultdict(lambda: deque(maxlen=KEPT))

    def add(self, *, at: str, method: str, chat_id: int | str | None, outcome: str, status: int | None) -> None:
        self._sequence += 1
        self._counts[method][outcome] += 1
        self._calls[method].append(
            RequestRecord(
                sequence=self._sequence,
                at=at,
                method=method,
                chat_id=chat_id,
                outcome=outcome,
                status=status,
            )
        )

    def clear(self) -> None:
        self._counts.clear()
        self._calls.clear()

    def report(self, *, method: str | None, limit: int) -> dict[str, Any]:
        chosen = [record for name, calls in self._calls.items() if method in (None, name) for record in calls]
        latest = sorted(chosen, key=lambda record: record.sequence)[-limit:]
        return {
            "counts": {name: dict(counts) for name, counts in self._counts.items()},
            "requests": [asdict(record) for record in latest],
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
            method = _method(request.path_params["method"])
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
        faults = self.world.use_faults(method, call.params.integer("chat_id"), marked=marked)
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
            return JSONResponse({"ok": True, "result": await self._result(method, call)})
        except ApiError as error:
            return refusal(error)

    async def _result(self, method: str, call: Call) -> Any:
        if method == GET_UPDATES:
            return await self.polls.get_updates(call)
        return METHODS[method](call)

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


def _instead(fault: Fault) -> Response | None:
    """What this fault answers instead of the method, if it does."""
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


def _method(name: str) -> str:
    """Method names are not case-sensitive."""
    canonical = _CANONICAL.get(name.lower())
    if canonical is None:
        raise not_found()
    return canonical
