"""The processes of a chaos run, each as an operator would start it.

    this process      the database (durable), the callers, the hand that kills
    butlers simulate  the providers; it ends when this process does, however that ends
    butlers run ROLE  one per butler that takes part; one of them is killed and started again

Everything is on the loopback address, on ports that nobody else uses, in a temporary directory. Only processes that
were started here are ended, by their id.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2

from butlers.butler.identity import TokenFile
from butlers.clock import Clock
from butlers.daemon.demo.instance import PortRange, clean_environment
from butlers.daemon.places import Places
from butlers.errors import ButlersError, TimeoutExceeded
from butlers.operations.operation import Role
from butlers.roster import load_roster
from butlers.simulators import simulator_ports
from butlers.storage.address import with_database
from butlers.storage.database import Database, create_database_if_missing
from butlers.storage.embedded import EmbeddedPostgres

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
DATABASE = "butlers"


@dataclass(slots=True, kw_only=True)
class Rig:
    """Where everything is, and the butlers that live at present."""

    folder: Path
    roster: Path
    offset: int
    ports: Mapping[str, int]
    database: Database
    dsn: str
    http: httpx2.AsyncClient
    clock: Clock
    token: str = ""
    _living: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    def url(self, name: str, path: str = "") -> str:
        return f"http://{HOST}:{self.ports[name] + self.offset}{path}"

    async def spawn(self, role: str, settings: Sequence[str] = (), ports: Mapping[str, int] | None = None) -> None:
        """Start a butler's process; it is not ready yet. Settings are key=value, ports those of its neighbours."""
        arguments = ["run", role, *self._places(), "--set", "simulators=on", "--set", f"roster={self.roster}"]
        for setting in settings:
            arguments += ["--set", setting]
        for name, port in (ports or {}).items():
            arguments += ["--port", f"{name}={port}"]
        with self._words_of(role).open("ab") as words:
            self._living[role] = await _butlers(*arguments, stderr=words, environment={"DATABASE_URL": self.dsn})

    async def kill(self, role: str) -> datetime:
        """kill -9, and the moment of it."""
        process = self._living.get(role)
        if process is None or process.returncode is not None:
            raise ButlersError(f"{role} ended by itself: {self._last_lines(role)}")
        moment = self.clock.now()
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        return moment

    async def until_healthy(self, role: str) -> None:
        deadline = self.clock.monotonic() + START_TIMEOUT_S
        while self.clock.monotonic() < deadline:
            if await self.answers(role, healthy=True):
                return
            if role not in self._living or self._living[role].returncode is not None:
                raise ButlersError(f"{role} did not start: {self._last_lines(role)}")
            await self.clock.sleep(0.02)
        raise TimeoutExceeded(f"{role} was not healthy within {START_TIMEOUT_S:g} s")

    async def end_butlers(self) -> None:
        await asyncio.gather(*(_end(process) for process in self._living.values()))

    async def control(self, verb: str, path: str, body: Any = None) -> Any:
        """Move or read the simulated world; mail's control stands beside Telegram's."""
        address = self.url("telegram_simulator", f"/control{path}")
        response = await self.http.request(verb, address, json=body)
        response.raise_for_status()
        return response.json() if response.content else None

    async def answers(self, role: str, *, healthy: bool = False) -> bool:
        """Whether a butler's door answers at all, or says that all is well."""
        try:
            answer = await self.http.get(self.url(role, "/readyz" if healthy else "/healthz"), timeout=5)
        except httpx2.HTTPError:
            return False
        return answer.status_code == 200 or not healthy

    def _places(self) -> list[str]:
        return ["--data-dir", str(self.folder), "--port-offset", str(self.offset)]

    def _words_of(self, role: str) -> Path:
        return self.folder / f"{role}.err"

    def _last_lines(self, role: str) -> str:
        lines = self._words_of(role).read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-5:])


@asynccontextmanager
async def rig(folder: Path, roster: Path, *, clock: Clock) -> AsyncIterator[Rig]:
    """Database and simulators, running; no butler yet."""
    places = Places(folder)
    places.create()
    usual = {name: config.butler.port for name, config in load_roster(roster).items()} | dict(simulator_ports())
    reserved = PortRange(list(usual.values()))
    async with AsyncExitStack() as stack:
        stack.callback(reserved.give_back)
        server = EmbeddedPostgres(folder)
        await asyncio.to_thread(server.start)
        stack.push_async_callback(asyncio.to_thread, server.stop)
        await create_database_if_missing(server.uri(""), DATABASE)
        dsn = with_database(server.uri(""), DATABASE)
        made = Rig(
            folder=folder,
            roster=roster,
            offset=reserved.offset,
            ports=usual,
            database=await stack.enter_async_context(await Database.connect(dsn, max_size=4)),
            dsn=dsn,
            http=await stack.enter_async_context(_http()),
            clock=clock,
            token=TokenFile(places.tokens, clock).ensure("switchboard", Role.BUTLER).secret,
        )
        await stack.enter_async_context(_simulators(made))
        stack.push_async_callback(made.end_butlers)
        yield made


@asynccontextmanager
async def _simulators(made: Rig) -> AsyncIterator[None]:
    with (made.folder / "simulators.err").open("ab") as words:
        process = await _butlers("simulate", "--with-parent", *made._places(), stderr=words, talks=True)
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            line = await process.stdout.readline() if process.stdout else b""
        if not line:
            raise ButlersError(f"the simulators did not start; see {made.folder / 'simulators.err'}")
        yield
    finally:
        await _end(process)


async def _butlers(
    *arguments: str, stderr: Any, talks: bool = False, environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "butlers.daemon.cli",
        *arguments,
        env=clean_environment() | dict(environment or {}),
        stdin=pipe if talks else none,
        stdout=pipe if talks else none,
        stderr=stderr,
        start_new_session=True,  # ctrl-C is for us; we end the children in their turn
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(15):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _http() -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=200, max_keepalive_connections=0)  # a killed server leaves dead ones behind
    return httpx2.AsyncClient(timeout=30, trust_env=False, limits=limits)
