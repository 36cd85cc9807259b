"""One process of the system: started in order, stopped in reverse.

start   credentials, database, migrations, modules and schedules, doors, recovery and loops
stop    sources, then drain (while targets are up), doors, loops, database
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any, Protocol
from uuid import UUID

from butlers.butler.config import Section
from butlers.butler.identity import OPERATOR, TokenFile
from butlers.channels.registry import outbound_names, owner_credential_kinds
from butlers.clock import Clock, SystemClock
from butlers.contacts import MIGRATIONS as CONTACT_MIGRATIONS
from butlers.contacts import Contacts
from butlers.contracts.envelope import Value, build_models
from butlers.daemon.collector import spared_collector
from butlers.daemon.compose.base import Butler, Process, insist
from butlers.daemon.compose.channels import owner_credentials
from butlers.daemon.places import Places
from butlers.daemon.services import Service, database_check, disk_check
from butlers.daemon.settings import Settings, port_remedy
from butlers.errors import ClassifiedError, ConfigurationError, TargetUnavailable
from butlers.operations.operation import Role
from butlers.roster import ButlerConfig, check_credentials
from butlers.serving.connections import Connections, raise_file_limit
from butlers.serving.server import GuestServer, listen
from butlers.storage.address import database_of, with_database
from butlers.storage.database import Database, create_database_if_missing
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import MigrationSet, migrate
from butlers.storage.server_process import ServerState, ServerWatch
from butlers.telemetry import get_logger

log = get_logger("butlers.system")

LOG_PRUNING_S = 600.0  # how often the embedded database's old log files are looked for

_COMPOSERS = {name: f"butlers.daemon.compose.{name}" for name in ("switchboard", "messenger")}


class Composer(Protocol):
    """How one kind of butler is put together."""

    def migration_sets(self, config: ButlerConfig) -> list[MigrationSet]: ...

    def build(self, process: Process, config: ButlerConfig) -> Butler: ...


def composer_of(name: str) -> Composer:
    """Loaded when needed: a process that serves one butler starts without the weight of the others."""
    module: Any = import_module(_COMPOSERS.get(name, "butlers.daemon.compose.specialist"))
    composer: Composer = module
    return composer


def migration_sets(configs: Sequence[ButlerConfig]) -> list[MigrationSet]:
    """Every table that these butlers need."""
    sets = [CONTACT_MIGRATIONS]
    for config in configs:
        sets += composer_of(config.name).migration_sets(config)
    return sets


class System:
    """Some or all butlers of a roster in this process."""

    def __init__(
        self,
        *,
        settings: Settings,
        roster: Mapping[str, ButlerConfig],
        names: Sequence[str],
        environment: Mapping[str, str],
        clock: Clock,
        new_id: Callable[[], UUID],
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._roster = roster
        self._configs = [roster[name] for name in names]
        self._environment = environment
        self._clock = clock
        self._new_id = new_id
        self._progress = progress
        self._places = Places(settings.data_dir)
        self._stack = AsyncExitStack()
        self._servers: list[GuestServer] = []
        self._watch: ServerWatch | None = None  # over the embedded database
        self._server: EmbeddedPostgres | None = None  # None: DATABASE_URL names one
        self._connections = Connections(settings.door_limits.within(raise_file_limit()))
        self.butlers: list[Butler] = []
        self.other_doors: dict[str, str] = {}
        build_models(Value, Section)

    async def start(self) -> None:
        """All or nothing: a failed start leaves nothing running."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        for config in self._configs:
            check_credentials(config, self._environment, elsewhere=owner_credential_kinds())
        tokens = self._tokens()
        listeners = [self._listen(config) for config in self._configs]
        database, dsn = await self._database()
        self._progress("preparing the tables")
        await migrate(database, migration_sets(self._configs))
        await self._add_owner_credentials(database)
        process = self._process(database, dsn, tokens)
        self.other_doors = process.doors
        process.health.register("database", database_check(database, self._watch), essential=True)
        process.health.register("disk", disk_check(self._places.root), essential=True)
        self.butlers = [composer_of(config.name).build(process, config) for config in self._configs]
        await self._configure_owner()
        for butler, listener in zip(self.butlers, listeners, strict=True):
            await butler.start(before_doors=True)
            server = GuestServer(await butler.app(), connections=self._connections)
            await server.open(listener)
            self._servers.append(server)
        self._stack.enter_context(spared_collector())
        await self._begin()

    async def _begin(self) -> None:
        """With Switchboard here, butlers are registered before work is taken up; otherwise nobody waits for it."""
        at_home = any(butler.name == "switchboard" for butler in self.butlers)
        if at_home:
            await self._register_all()
        if (server := self._server) is not None and self.butlers:
            prune = functools.partial(asyncio.to_thread, server.prune_logs)
            self.butlers[0].add(Service(name="database log", run=prune, every_s=LOG_PRUNING_S))
        for butler in self.butlers:
            heartbeat = functools.partial(self._heartbeat, butler)
            butler.add(Service(name="registry heartbeat", run=heartbeat, every_s=self._settings.heartbeat_s))
            await butler.start(before_doors=False)
        if not at_home:
            await self._register_all()

    async def notices(self) -> list[str]:
        """What the operator who started the system must know and do."""
        return [text for butler in self.butlers for notice in butler.notices if (text := await notice()) is not None]

    async def stop(self) -> None:
        """Drain and close; what does not finish in time is taken up again by the next start."""
        for butler in self.butlers:
            butler.state = "stopping"
        for butler in sorted(self.butlers, key=_drain_order):
            await butler.drain()
        await asyncio.gather(*(insist("closing a door", server.close) for server in self._servers))
        for butler in self.butlers:
            await butler.stop()
        await asyncio.gather(*(asyncio.to_thread(butler.telemetry.shutdown) for butler in self.butlers))
        await self._stack.aclose()

    def _tokens(self) -> TokenFile:
        tokens = TokenFile(self._places.tokens, self._clock)
        for name in self._roster:
            tokens.ensure(name, Role.BUTLER)
        tokens.ensure(OPERATOR, Role.OPERATOR)
        return tokens

    def _listen(self, config: ButlerConfig) -> socket.socket:
        port = self._settings.port(config.name, config.butler.port)
        listener = listen(self._settings.host, port, source=config.name, remedy=port_remedy(config.name))
        self._stack.callback(listener.close)
        return listener

    async def _database(self) -> tuple[Database, str]:
        """The pool, and the address of what it is connected to."""
        dsn = await self._address()
        # A database that the address names is used as it is; otherwise butler.toml names it.
        name = database_of(dsn) or self._database_name()
        await create_database_if_missing(dsn, name)
        dsn = with_database(dsn, name)
        database = await Database.connect(dsn, max_size=self._settings.database_pool)
        self._stack.push_async_callback(database.close)
        return database, dsn

    async def _address(self) -> str:
        if self._settings.database_url is not None:
            return self._settings.database_url
        self._progress("starting the embedded database")
        server = self._server = EmbeddedPostgres(
            self._places.root,
            durable=self._settings.database_durable,
            log_bytes=self._settings.log_max_bytes,
            log_keep=self._settings.log_keep,
        )
        await asyncio.to_thread(server.start)
        self._stack.push_async_callback(asyncio.to_thread, server.stop)
        self._watch = ServerWatch(server, clock=SystemClock(), report=_log_server_state)
        self._watch.start()
        self._stack.push_async_callback(asyncio.to_thread, self._watch.stop)
        return server.uri("")

    def _database_name(self) -> str:
        names = {config.butler.db.name: config for config in self._configs}
        if len(names) > 1:
            raise ConfigurationError(
                f"butlers of one system share one database, not {', '.join(sorted(names))}",
                source=self._configs[-1].source,
                key="butler.db.name",
                remedy="give all butlers the same database and a schema each",
            )
        return next(iter(names))

    def _process(self, database: Database, dsn: str, tokens: TokenFile) -> Process:
        return Process(
            settings=self._settings,
            places=self._places,
            roster=self._roster,
            environment=self._environment,
            database=database,
            dsn=dsn,
            tokens=tokens,
            clock=self._clock,
            new_id=self._new_id,
            instance=str(self._new_id()),
        )

    async def _add_owner_credentials(self, database: Database) -> None:
        contacts = Contacts(database=database, clock=self._clock, new_id=self._new_id)
        found = await owner_credentials(self._configs, self._environment, contacts)
        self._environment = {**self._environment, **found}
        for config in self._configs:
            check_credentials(config, self._environment)

    async def _configure_owner(self) -> None:
        settings = self._settings
        identifiers = {channel: getattr(settings, f"owner_{channel}", None) for channel in outbound_names()}
        given = {channel: value for channel, value in identifiers.items() if value}
        if given and self.butlers:
            await self.butlers[0].contacts.configure_owner(settings.owner_name, given)

    async def _register_all(self) -> None:
        for butler in self.butlers:
            try:
                await self._register(butler)
            except ClassifiedError as error:
                # Switchboard may start later in another process; the heartbeat tries again.
                log.warning("not registered yet", butler=butler.name, error=error, error_class=error.error_class)

    async def _register(self, butler: Butler) -> None:
        await butler.transport.call("switchboard", "register_butler", butler.card())

    async def _heartbeat(self, butler: Butler) -> None:
        try:
            answer = await butler.transport.call("switchboard", "butler.heartbeat", {})
            if not answer["registered"]:
                await self._register(butler)
        except TargetUnavailable as error:
            if not error.retryable:
                raise
            # Switchboard is away, which is nothing wrong here; the next heartbeat tries again.
            log.warning("heartbeat not heard", butler=butler.name, error=error, error_class=error.error_class)


def _log_server_state(state: ServerState) -> None:
    """Called by the watch over the embedded database at every change."""
    if state.is_up and state.problem is not None:
        log.error("cannot see whether the embedded database lives, looking again", error=state.problem)
    elif state.is_up:
        log.warning("the embedded database is up again", attempts=state.deaths, count=state.restarts)
    elif state.problem is not None:
        log.error("the embedded database could not be started", error=state.problem, attempts=state.deaths)
    else:
        pause = round(state.pause_s, 3)
        log.error("the embedded database died, starting it again", attempts=state.deaths, retry_after_seconds=pause)


def _drain_order(butler: Butler) -> int:
    """From the way in to the way out, so that everything accepted can still leave."""
    return {"switchboard": 0, "messenger": 2}.get(butler.name, 1)
