"""A whole system in this process: every butler of the roster, the simulated providers, and a database of its own.

    async with running_system(tmp_path, postgres_server, heartbeat_s=1) as running:
        await running.ingest("I paid the electricity bill")
        await running.until(running.answers)  # what the bot wrote to the owner

It is the real composition root with the real migrations, doors and loops; only the command line is left out. It takes
well under a second, because the tables come from a template database that the test session builds once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar
from unittest.mock import patch
from uuid import uuid4

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from pydantic_core import to_json

from butlers.butler.identity import OPERATOR, Caller, Grant, TokenFile
from butlers.butler.toolbox import PendingApproval, ToolBox
from butlers.channels.email import OWNER_ADDRESS, SIMULATED_ADDRESS, SIMULATED_PASSWORD
from butlers.channels.email.simulator import MailSimulator, serve_mail
from butlers.channels.telegram import OWNER_CHAT
from butlers.channels.telegram.simulator import TelegramSimulator, serve_telegram
from butlers.clock import Clock, SystemClock
from butlers.daemon import system as system_module
from butlers.daemon.compose.base import Butler
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings, shipped_roster
from butlers.daemon.simulation import Simulated, simulated_environment, simulated_settings
from butlers.daemon.system import System, migration_sets
from butlers.ids import Uuid7Factory
from butlers.messenger.config import LimitsSection
from butlers.operations.operation import Role
from butlers.roster import ButlerConfig, load_roster
from butlers.simulators import simulator_ports
from butlers.simulators.calendar import CalendarSimulator, serve_calendar
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri

HOST = "127.0.0.1"
OWNER_CHAT_ID = int(OWNER_CHAT)
DEADLINE_S = 60.0  # generous: machines are busy, and whoever looks again returns at once
EVERY_PROVIDER = Simulated({"telegram", "mail", "calendar"})
_LOOK_AGAIN_S = 0.01

T = TypeVar("T")


def _checked(call: Callable[..., Awaitable[dict[str, Any]]]) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Every answer of every tool that a test calls, by whichever door, is what the tool declares."""

    async def checked(box: ToolBox, name: str, caller: Caller | None, arguments: dict[str, Any]) -> dict[str, Any]:
        answer = await call(box, name, caller, arguments)
        tool = box[name]
        waits = getattr(tool, "gated", False) and "action_id" in answer
        returns = PendingApproval if waits else tool.returns
        returns.model_validate_json(to_json(answer))
        return answer

    return checked


ToolBox.call = _checked(ToolBox.call)  # type: ignore[assignment, method-assign]


@dataclass(slots=True, kw_only=True)
class RunningSystem:
    """A started system and the hands to use it from outside."""

    system: System
    settings: Settings
    roster: Mapping[str, ButlerConfig]
    clock: Clock
    telegram: TelegramSimulator
    mail: MailSimulator
    calendar: CalendarSimulator
    tokens: TokenFile
    database: Database  # a pool of the test's own, also good while the system is stopped
    http: httpx2.AsyncClient  # without a token
    _build: Callable[[], System]
    _up: bool = False

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, or start again on the same ports, data directory and database after a stop."""
        self.system = self._build()
        # Collecting a test process's garbage before each start takes longer than the start.
        with patch.object(system_module, "spared_collector", nullcontext):
            await self.system.start()
        self._up = True

    async def stop(self) -> None:
        if self._up:
            self._up = False
            await self.system.stop()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    # --- doors -------------------------------------------------------------------------------------------------------

    def url(self, butler: str = "switchboard", path: str = "") -> str:
        """An address at a butler's door."""
        return f"http://{HOST}:{self.settings.ports[butler]}{path}"

    @property
    def urls(self) -> dict[str, str]:
        return {butler.name: self.url(butler.name) for butler in self.system.butlers}

    def butler(self, name: str) -> Butler:
        return next(butler for butler in self.system.butlers if butler.name == name)

    async def run_service(self, butler: str, name: str) -> None:
        """Run the action of a service now."""
        run = self.butler(butler).service(name).run
        assert run is not None
        await run()

    def token(self, name: str = OPERATOR) -> str:
        """The bearer token of a butler or of the operator."""
        secret = self.tokens.secret_of(name)
        assert secret is not None, f"{name} has no token"
        return secret

    def issue_token(self, name: str, role: Role, *grants: Grant) -> str:
        return self.tokens.issue(name, role, grants).secret

    def bearer(self, name: str = OPERATOR) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(name)}"}

    @asynccontextmanager
    async def mcp(
        self, butler: str, *, caller: str | None = OPERATOR, path: str = "/mcp", token: str | None = None
    ) -> AsyncIterator[Client]:
        """The official MCP client at a butler's door, as `caller` (None: without a token)."""
        secret = token or (self.token(caller) if caller else None)
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=DEADLINE_S) as http,
            Client(streamable_http_client(self.url(butler, path), http_client=http)) as client,
        ):
            yield client

    async def listed_tools(self, butler: str, *, path: str = "/mcp") -> set[str]:
        """The names of all tools at a butler's door: every caller is shown what it may call."""
        connector = self.issue_token("a-connector", Role.CONNECTOR)
        callers: list[dict[str, str]] = [{"caller": OPERATOR}, {"caller": "switchboard"}, {"caller": "messenger"}]
        names: set[str] = set()
        for given in [*callers, {"caller": butler}, {"token": connector}]:
            async with self.mcp(butler, path=path, **given) as client:
                names |= {tool.name for tool in (await client.list_tools()).tools}
        return names

    # --- deeds -------------------------------------------------------------------------------------------------------

    async def ingest(self, text: str, **event: Any) -> dict[str, Any]:
        """Hand in one message at `POST /api/ingest`; the reply."""
        response = await self.http.post(self.url(path="/api/ingest"), json=self.envelope(text, **event))
        assert response.status_code == 202, response.text
        reply: dict[str, Any] = response.json()
        return reply

    def envelope(self, text: str, **event: Any) -> dict[str, Any]:
        """A valid ingest.v1 from the API; `event` overrides fields of its event."""
        return {
            "schema_version": "ingest.v1",
            "source": {"channel": "api", "provider": "internal", "endpoint_identity": "tests"},
            "event": {"external_event_id": uuid4().hex, "observed_at": self.clock.now().isoformat()} | event,
            "sender": {"identity": "tester"},
            "payload": {"raw": {"text": text}, "normalized_text": text},
        }

    def own_envelope(self, text: str, caller: str, **event: Any) -> dict[str, Any]:
        """The same, as a client without a grant says it: in its own name."""
        source = {"channel": "api", "provider": "internal", "endpoint_identity": caller}
        return self.envelope(text, **event) | {"source": source, "sender": {"identity": caller}}

    async def says(self, text: str, *, chat: int = OWNER_CHAT_ID, **more: Any) -> dict[str, Any]:
        """Write to the bot as a person in a chat of the Telegram simulator."""
        body = {"chat_id": chat, "from": {"id": chat, "first_name": "Ann"}, "text": text, **more}
        return await self.control("POST", "/messages", body)

    async def transcript(self, chat: int = OWNER_CHAT_ID) -> list[dict[str, Any]]:
        """The whole chat: what people and the bot wrote."""
        lines: list[dict[str, Any]] = (await self.control("GET", f"/chats/{chat}/transcript"))["messages"]
        return lines

    async def answers(self, chat: int = OWNER_CHAT_ID) -> list[str]:
        """What the bot wrote there."""
        return [line["text"] for line in await self.transcript(chat) if line["from"] == "bot"]

    async def control(self, verb: str, path: str, body: Any = None) -> dict[str, Any]:
        """Move the Telegram simulator's world: people, faults, settings."""
        response = await self.http.request(verb, f"{self.telegram.base_url}/control{path}", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def request(self, request_id: str) -> dict[str, Any]:
        """What `GET /api/requests/{id}` tells."""
        response = await self.http.get(self.url(path=f"/api/requests/{request_id}"))
        assert response.status_code == 200, response.text
        trace: dict[str, Any] = response.json()
        return trace

    async def finished(self, request_id: str, *, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """The same, as soon as the request has come to its end."""

        async def terminal() -> dict[str, Any]:
            trace = await self.request(request_id)
            return trace if trace["final_state_at"] else {}

        return await self.until(terminal, deadline_s=deadline_s)

    async def until(self, look: Callable[[], Awaitable[T]], *, deadline_s: float = DEADLINE_S) -> T:
        """Look until something is there; fails with what was seen last."""
        seen: T | None = None
        try:
            async with asyncio.timeout(deadline_s):
                while not (seen := await look()):
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            raise AssertionError(f"nothing after {deadline_s} s; last seen: {seen!r}") from None
        return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Providers:
    """The simulated ones, serving."""

    telegram: TelegramSimulator
    mail: MailSimulator
    calendar: CalendarSimulator

    @classmethod
    async def serve(cls, stack: AsyncExitStack, clock: Clock) -> Self:
        accounts = {SIMULATED_ADDRESS: SIMULATED_PASSWORD, OWNER_ADDRESS: SIMULATED_PASSWORD}
        # Each waits a little for its last answers: all of them at the same time.
        started: list[AsyncExitStack] = []
        stack.push_async_callback(_close_together, started)

        async def serving(server: AbstractAsyncContextManager[T]) -> T:
            own = AsyncExitStack()
            started.append(own)
            return await own.enter_async_context(server)

        return cls(
            telegram=await serving(serve_telegram(HOST, 0, clock=clock)),
            mail=await serving(serve_mail(HOST, 0, 0, 0, clock=clock, accounts=accounts)),
            calendar=await serving(serve_calendar(HOST, 0, clock=clock)),
        )

    def ports(self) -> dict[str, int]:
        ports = {
            "telegram_simulator": self.telegram.port,
            "mail_control": self.mail.control_port or 0,
            "smtp_simulator": self.mail.smtp_port,
            "imap_simulator": self.mail.imap_port,
            "calendar_simulator": self.calendar.port,
        }
        assert ports.keys() == simulator_ports().keys() - {"webhook_simulator"}
        return ports


async def _close_together(stacks: Sequence[AsyncExitStack]) -> None:
    await asyncio.gather(*(stack.aclose() for stack in stacks))


def _roster(
    directory: Path, *, shipped_limits: bool, shipped_retries: bool, reactions: bool
) -> dict[str, ButlerConfig]:
    loaded = load_roster(directory)
    patient = loaded if shipped_retries else {name: _impatient(config) for name, config in loaded.items()}
    roster = {name: _quiet(config, reactions=reactions) for name, config in patient.items()}
    return roster if shipped_limits else {name: _lifted(config) for name, config in roster.items()}


def _impatient(config: ButlerConfig) -> ButlerConfig:
    """With `[delivery.retry.default]` for chats, so that a dead letter takes seconds and not a quarter of an hour."""
    retry = {name: policy for name, policy in config.delivery.retry.items() if name in ("email", "default")}
    return config.model_copy(update={"delivery": config.delivery.model_copy(update={"retry": retry})})


def _quiet(config: ButlerConfig, *, reactions: bool) -> ButlerConfig:
    """Reactions are deliveries, too, and most tests count deliveries."""
    lifecycle = config.lifecycle.model_copy(update={"enabled": reactions})
    return config.model_copy(update={"lifecycle": lifecycle})


def _lifted(config: ButlerConfig) -> ButlerConfig:
    """The same butler without a rate limit, or a notice to the owner, in the way of what a test is about."""
    limits = LimitsSection(
        max_in_flight=100_000,
        global_per_minute=1e6,
        channel_per_minute=dict.fromkeys(config.delivery.limits.channel_per_minute, 1e6),
        recipient_per_minute=1e6,
    )
    delivery = config.delivery.model_copy(update={"limits": limits, "tell_owner": False})
    return config.model_copy(update={"delivery": delivery})


@asynccontextmanager
async def running_system(
    tmp_path: Path,
    postgres_server: EmbeddedPostgres,
    *,
    clock: Clock | None = None,
    names: Sequence[str] | None = None,  # default: the whole roster
    roster_dir: Path | None = None,
    environment: Mapping[str, str] | None = None,  # credentials beside the simulators' own
    shipped_limits: bool = False,  # True: deliveries are limited, and the owner is told, as the roster says
    shipped_retries: bool = False,  # True: chats are retried for a quarter of an hour, as the roster says
    reactions: bool = False,  # True: people see the eyes, the thumb, and what failed, as the roster says
    start: bool = True,
    simulated: Simulated = EVERY_PROVIDER,  # who is not among them has no credentials
    owner_chat_known: bool = True,  # False: nobody has said which Telegram chat is the owner's
    **settings: Any,
) -> AsyncIterator[RunningSystem]:
    """Everything started; `settings` are fields of `Settings`. Stopped, drained and dropped at the end."""
    clock = clock or SystemClock()
    roster = _roster(
        roster_dir or shipped_roster(),
        shipped_limits=shipped_limits,
        shipped_retries=shipped_retries,
        reactions=reactions,
    )
    places = Places(tmp_path / "data")
    places.create()
    async with AsyncExitStack() as stack:
        providers = await Providers.serve(stack, clock)
        uri = await stack.enter_async_context(cloned_database_uri(postgres_server, migration_sets([*roster.values()])))
        ports = {name: stack.enter_context(_reserved()).getsockname()[1] for name in (*roster, "courier")}
        ports |= providers.ports() | settings.pop("ports", {})
        given = {"data_dir": places.root, "database_url": uri, "host": HOST, "database_durable": False}
        given |= {"spark_master": "none"} | settings  # a start of Spark is ten seconds: tests that want it say so
        chosen = simulated_settings(Settings(**given, ports=ports), simulated)
        chosen = chosen if owner_chat_known else chosen.model_copy(update={"owner_telegram": None})
        credentials = simulated_environment(simulated, roster, environment or {})
        build = _builder(chosen, roster, names or [*roster], credentials, clock)
        running = RunningSystem(
            system=build(),
            settings=chosen,
            roster=roster,
            clock=clock,
            telegram=providers.telegram,
            mail=providers.mail,
            calendar=providers.calendar,
            tokens=TokenFile(places.tokens, clock),
            database=await stack.enter_async_context(await Database.connect(uri, max_size=3)),
            http=await stack.enter_async_context(httpx2.AsyncClient(timeout=DEADLINE_S)),
            _build=build,
        )
        if start:
            await running.start()
        stack.push_async_callback(running.stop)
        yield running


def _builder(
    settings: Settings,
    roster: Mapping[str, ButlerConfig],
    names: Sequence[str],
    environment: Mapping[str, str],
    clock: Clock,
) -> Callable[[], System]:
    """Builds the same system again for every start."""

    def build() -> System:
        return System(
            settings=settings,
            roster=roster,
            names=list(names),
            environment=environment,
            clock=clock,
            new_id=Uuid7Factory(clock),
        )

    return build


def _reserved() -> socket.socket:
    """A free port that nobody else is given: bound and not listening, so that a server may still take it."""
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((HOST, 0))
    return reservation
