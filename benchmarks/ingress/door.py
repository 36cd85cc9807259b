"""Switchboard as the composition root builds it, with a second door beside the real one that stores nothing.

Both doors are the same application in the same server: routing, authentication, reading, parsing and checking are the
same code, only `Ingress.accept` differs.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from fastapi import FastAPI
from starlette.routing import Mount

from butlers.butler.identity import Caller, Grant, TokenFile
from butlers.clock import SystemClock
from butlers.contracts.ingest import IngestEnvelope, IngestReply
from butlers.daemon.compose import switchboard as composer
from butlers.daemon.compose.base import Butler, Process
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings, shipped_roster
from butlers.daemon.system import System
from butlers.ids import Uuid7Factory
from butlers.operations.operation import Role
from butlers.roster import ButlerConfig, load_roster
from butlers.switchboard.config import AdmissionSection
from butlers.switchboard.ingress.api import Api
from butlers.switchboard.ingress.ingress import Ingress
from butlers.telemetry import configure_logging

HOST = "127.0.0.1"
WORKERS = ("buffer", "lease keeper")
NEVER_S = 1e6
CLIENT = "bench"


class NothingStored:
    """The ingress that says yes and forgets."""

    def __init__(self, new_id: Callable[[], UUID]) -> None:
        self._new_id = new_id

    async def accept(self, _envelope: IngestEnvelope, *, submitted_by: Caller) -> IngestReply:
        return IngestReply(request_id=self._new_id(), duplicate=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    port: int
    token: str
    real: str = "/api/ingest"
    noop: str = "/noop/ingest"


@asynccontextmanager
async def open_door(folder: Path, dsn: str, *, workers_held: bool, pool: int) -> AsyncIterator[Door]:
    """Serve; with `workers_held` what is accepted waits, so that accepting alone is measured."""
    clock = SystemClock()
    places = Places(folder / "data")
    places.create()
    configure_logging(folder / "butlers.jsonl")  # as a process of the system logs
    port, roster = _free_port(), _roomy(load_roster(shipped_roster()))
    ports = {name: _free_port() for name in roster} | {"switchboard": port}
    settings = Settings(
        data_dir=places.root, database_url=dsn, database_pool=pool, ports=ports, heartbeat_s=NEVER_S, log_level="INFO"
    )
    token = TokenFile(places.tokens, clock).issue(
        CLIENT, Role.CLIENT, (Grant(channel="api", endpoint=f"client:{CLIENT}"),)
    )
    with _second_door(workers_held=workers_held):
        system = System(
            settings=settings,
            roster=roster,
            names=["switchboard"],
            environment={},
            clock=clock,
            new_id=Uuid7Factory(clock),
        )
        await system.start()
    try:
        yield Door(port=port, token=token.secret)
    finally:
        await asyncio.shield(system.stop())


def _roomy(roster: dict[str, ButlerConfig]) -> dict[str, ButlerConfig]:
    """Switchboard without its providers, and with room for everything: overflow is not what is measured."""
    switchboard = roster["switchboard"]
    modules = switchboard.modules.model_copy(update={"telegram": None, "email": None, "calendar": None})
    admission = AdmissionSection(max_waiting=10**9, max_stored=10**9)
    lifted = switchboard.model_copy(update={"modules": modules, "admission": admission})
    return roster | {"switchboard": lifted}


@contextmanager
def _second_door(*, workers_held: bool) -> Iterator[None]:
    """While it lasts, Switchboard is built with the other door beside its own."""
    patched: Any = composer
    build, app = composer.build, Api.app
    built: list[Api] = []

    def remembered(api: Api) -> FastAPI:
        built.append(api)
        return app(api)

    def build_with_both(process: Process, config: ButlerConfig) -> Butler:
        butler = build(process, config)
        noop = replace(built[0], ingress=cast("Ingress", NothingStored(process.new_id)))
        butler.routes.append(Mount("/noop", app=app(noop)))
        if workers_held:
            butler.services = [service for service in butler.services if service.name not in WORKERS]
        return butler

    patched.build, Api.app = build_with_both, remembered  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        patched.build, Api.app = build, app  # type: ignore[method-assign]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
