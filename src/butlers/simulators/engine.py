"""What every simulator is made of: a server whose connections can be dropped, a control API, and faults on request.

control API   bodies checked field by field, one shape of refusal              control_routes, parsed_body, Refused
faults        wait for a moment, strike so often, are remembered in a journal   Fault, Faults
server        answers what it has received before it stops                      application, serving, Pauses
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from butlers.clock import Clock
from butlers.errors import FieldError, ValidationError
from butlers.serving.bounded_http import BoundedHttp
from butlers.serving.guard import LOOPBACK, Guard
from butlers.serving.server import GuestServer, listen
from butlers.simulators.journal import Entry

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

BODY_LIMIT = 16 * 1024 * 1024
DELAY = "delay"  # the kind of fault that every simulator has: wait, then go on
_TRANSPORT = "butlers.transport"
_log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Any]  # returns a Response or what becomes a JSON one, at once or awaited


# --- control API -----------------------------------------------------------------------------------------------------


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


BodyT = TypeVar("BodyT", bound=Body)


class Refused(Exception):
    def __init__(self, status: int, field: str, problem: str) -> None:
        super().__init__(problem)
        self.status = status
        self.error = invalid(field, problem)


def control_routes(*table: tuple[str, str, Endpoint], below: str = "") -> list[Route]:
    return [_control_route(method, f"/control{below}{path}", endpoint) for method, path, endpoint in table]


def _control_route(method: str, path: str, endpoint: Endpoint) -> Route:
    async def answer(request: Request) -> Response:
        try:
            reply = endpoint(request)
            reply = await reply if inspect.isawaitable(reply) else reply
        except ValidationError as error:
            return JSONResponse({"error": error.describe()}, status_code=422)
        except Refused as refused:
            return JSONResponse({"error": refused.error.describe()}, status_code=refused.status)
        return reply if isinstance(reply, Response) else JSONResponse(reply)

    return Route(path, answer, methods=[method])


async def parsed_body(request: Request, model: type[BodyT]) -> BodyT:
    """The body as a value; nothing at all counts as an empty object."""
    content = await read_body(request, kind="application/json")
    try:
        given = decoded(content) if content.strip() else {}
    except (ValueError, RecursionError):
        raise Refused(400, "", "the body is not JSON in UTF-8") from None
    try:
        return model.model_validate(given)
    except pydantic.ValidationError as error:
        found = error.errors(include_input=False, include_url=False, include_context=False)
        fields = tuple(FieldError(field=".".join(map(str, one["loc"])), error=one["msg"]) for one in found)
        raise ValidationError("the request is not valid", fields=fields) from None


async def read_body(request: Request, *, kind: str) -> bytes:
    content, given = bytearray(), request.headers.get("content-type", kind).partition(";")[0].strip().lower()
    if given != kind:
        raise Refused(415, "content-type", f"must be {kind}")
    async for chunk in request.stream():
        content += chunk
        if len(content) > BODY_LIMIT:
            raise Refused(413, "", f"the body has more than {BODY_LIMIT} bytes")
    return bytes(content)


def decoded(source: str | bytes) -> Any:
    """JSON whose every string can be written as UTF-8 again (a lone surrogate cannot)."""
    value = json.loads(source)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def invalid(field: str, problem: str) -> ValidationError:
    return ValidationError(problem, fields=(FieldError(field=field, error=problem),))


def unknown(field: str, problem: str) -> Refused:
    return Refused(404, field, problem)


# --- faults ----------------------------------------------------------------------------------------------------------


class Fault(Body):
    """What goes wrong on request. A simulator's own faults add which of its moments they hit, and what they do."""

    id: int = Field(default=0, alias="fault_id")  # given by `Faults`
    kind: Annotated[str, Field(strict=False)]
    times: Annotated[int, Field(ge=1)] | None = 1  # how often it still strikes; None: until removed
    skip: Annotated[int, Field(ge=0, le=1_000_000)] = 0  # moments that it still lets pass
    seconds: Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)] = 1.0  # for delay

    def to_wire(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


FaultT = TypeVar("FaultT", bound=Fault)


class Faults(Generic[FaultT]):
    """The faults that are waiting, oldest first. Every change goes through `commit`, which a journal may record."""

    def __init__(self, model: type[FaultT], commit: Callable[..., None] | None = None) -> None:
        self._model = model
        self._commit = commit or (lambda *changes: [self.apply(change) for change in changes])
        self._waiting: dict[int, FaultT] = {}
        self._last_id = 0
        self._struck = asyncio.Event()

    def add(self, fault: FaultT) -> FaultT:
        added = fault.model_copy(update={"id": self._last_id + 1})
        self._commit({"change": "fault_added", "fault": added.to_wire()})
        return added

    def waiting(self) -> tuple[FaultT, ...]:
        return tuple(self._waiting.values())

    def remove(self, fault_id: int) -> bool:
        return self._waiting.pop(fault_id, None) is not None

    def clear(self) -> None:
        self._commit({"change": "faults_cleared"})

    def take(self, hits: Callable[[FaultT], bool], *, only_oldest: bool = False) -> list[FaultT]:
        """The faults that strike now, counted as used: every delay and the oldest of the others, or only the oldest.

        Those that still let a moment pass have done so once more.
        """
        hitting = [fault for fault in self._waiting.values() if hits(fault)]
        ready = [fault for fault in hitting if fault.skip == 0]
        delays, others = ([f for f in ready if (f.kind == DELAY) is delays] for delays in (True, False))
        struck = ready[:1] if only_oldest else [*delays, *others[:1]]
        changes = [{"change": "fault_passed", "fault_id": fault.id} for fault in hitting if fault.skip > 0]
        changes += [{"change": "fault_used", "fault_id": fault.id} for fault in struck if fault.times is not None]
        if changes:
            self._commit(*changes)
        if struck:
            self._struck.set()
            self._struck = asyncio.Event()
        return struck

    async def wait_until_used_up(self, fault_id: int) -> None:
        """Wait until the fault has struck for the last time; the caller sets the deadline."""
        while fault_id in self._waiting:
            await self._struck.wait()

    def apply(self, change: Entry) -> bool:
        """Returns whether the change is about faults alone."""
        match change["change"]:
            case "fault_added":
                fault = self._model.model_validate(change["fault"])
                self._waiting[fault.id] = fault
                self._last_id = fault.id
            case "fault_used":
                fault = self._waiting[change["fault_id"]]
                if fault.times == 1:
                    del self._waiting[fault.id]
                elif fault.times is not None:
                    self._waiting[fault.id] = fault.model_copy(update={"times": fault.times - 1})
            case "fault_passed":
                fault = self._waiting[change["fault_id"]]
                self._waiting[fault.id] = fault.model_copy(update={"skip": fault.skip - 1})
            case "faults_cleared":
                self._waiting.clear()
            case "reset":
                self._waiting.clear()
                return False
            case _:
                return False
        return True

    def routes(self, below: str = "", *, model: type[FaultT] | None = None) -> list[Route]:
        """`/faults` of the control API; `model` checks more of what is asked for."""

        async def add(request: Request) -> Any:
            return self.add(await parsed_body(request, model or self._model)).to_wire()

        def clear(_request: Request) -> Any:
            self.clear()
            return {"faults": []}

        def waiting(_request: Request) -> Any:
            return {"faults": [fault.to_wire() for fault in self.waiting()]}

        return control_routes(
            ("POST", "/faults", add), ("GET", "/faults", waiting), ("DELETE", "/faults", clear), below=below
        )


# --- server ----------------------------------------------------------------------------------------------------------


class DroppedConnection(Response):
    """No answer at all: the client sees the connection break."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport: asyncio.Transport = scope[_TRANSPORT]
        transport.abort()
        while (await receive())["type"] != "http.disconnect":
            pass


class _DroppableHttp(BoundedHttp):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        app = self.app

        async def aware(scope: Any, receive: Any, send: Any) -> None:
            await app(scope | {_TRANSPORT: transport}, receive, send)

        self.app = aware


class Pauses:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: set[asyncio.Task[None]] = set()
        self._closed = False

    async def sleep(self, seconds: float) -> None:
        if self._closed:
            return
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        self._waiting.add(timer)
        try:
            await asyncio.wait({timer})
        finally:
            self._waiting.discard(timer)
            timer.cancel()

    def close(self) -> None:
        """End every pause, and let none begin."""
        self._closed = True
        for timer in self._waiting:
            timer.cancel()


def listen_as(simulator: str, host: str, port: int) -> socket.socket:
    return listen(host, port, source=simulator, remedy="choose another port, 0 takes a free one")


def application(routes: Iterable[BaseRoute], *, unavailable: Callable[[], Response], **options: Any) -> Starlette:
    """The routes and `/healthz`. Where the journal cannot be written nothing was accepted, and `unavailable` says so
    in the provider's words.
    """

    async def healthy(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def not_written(_request: Request, error: Exception) -> Response:
        _log.error("the journal could not be written: %s", error)
        return unavailable()

    handlers = {OSError: not_written, **options.pop("exception_handlers", {})}
    return Starlette(routes=[Route("/healthz", healthy), *routes], exception_handlers=handlers, **options)


@contextlib.asynccontextmanager
async def serving(
    app: Starlette, listener: socket.socket, *, stopping: Iterable[Callable[[], None]] = ()
) -> AsyncIterator[int]:
    """Serve until the block ends, and return the port; then call `stopping`, and answer what was received."""
    host, port = listener.getsockname()[:2]
    server = GuestServer(_guarded(app, loopback_only=host in LOOPBACK), http=_DroppableHttp)
    try:
        await server.open(listener)
        yield port
    finally:
        for stop in stopping:
            stop()
        await server.close()


def _guarded(app: Any, *, loopback_only: bool) -> Guard:
    """What imitates a provider may be asked for by any name; the control API only by this machine's."""

    def is_ours(path: str) -> bool:
        return path.startswith(("/control", "/healthz"))

    def controls(path: str) -> bool:
        return path.startswith("/control")

    return Guard(app, loopback_only=loopback_only, own_host=is_ours, json_bodies=is_ours, own_account=controls)
