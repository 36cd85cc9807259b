"""The door of the Bot API: `/bot<token>/<method>`.

    token known? -> method known? -> read the parameters -> faults -> the method itself -> answer, or drop

Every call that reaches a known method is written to the request log once, with how it ended.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from butlers.channels.telegram.simulator.faults import Fault, FaultKind
from butlers.channels.telegram.simulator.methods import METHODS, Call
from butlers.channels.telegram.simulator.model import ApiError, bad_request
from butlers.channels.telegram.simulator.state import BotState, SimulatedTelegram
from butlers.channels.telegram.simulator.updates import Polls
from butlers.simulators.connection import DroppedConnection
from butlers.simulators.control import decoded

_TRUE = frozenset({"true", "yes", "1"})


class Params:
    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        return value if value is None or isinstance(value, str) else json.dumps(value)

    def integer(self, name: str) -> int | None:
        return as_integer(self._values.get(name))

    def within(self, name: str, default: int, low: int, high: int) -> int:
        """A number forced between two bounds."""
        value = self.integer(name)
        return min(high, max(low, default if value is None else value))

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        return str(value).lower() in _TRUE

    def structure(self, name: str) -> Any:
        value = self._values.get(name)
        if not isinstance(value, str):
            return value
        try:
            return decoded(value)
        except ValueError:
            raise bad_request(f"can't parse {name} JSON object") from None

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.structure(name)
        if value is not None and not isinstance(value, dict):
            raise bad_request(f"can't parse {name} JSON object")
        return value or {}


def as_integer(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None


async def read_params(request: Request) -> Params:
    return Params(dict(request.query_params) | await _body(request))


async def _body(request: Request) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return _json_object(await request.body())
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        async with request.form() as form:
            return {name: value for name, value in form.items() if isinstance(value, str)}
    return {}


def _json_object(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        value = decoded(body)
    except UnicodeError:
        raise bad_request("strings must be encoded in UTF-8") from None
    except ValueError:
        raise bad_request("can't parse JSON object") from None
    if not isinstance(value, dict):
        raise bad_request("can't parse JSON object")
    return value


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
