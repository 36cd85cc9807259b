"""A domain butler: the base, a route inbox and what it keeps."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from butlers.butler.modules import Module
from butlers.butler.route_inbox import InboxPolicy, RouteInbox
from butlers.butler.specialist import RELATIONSHIP, SignalRecorder, Specialist, migrations
from butlers.daemon.compose.base import Butler, Process, base_migrations, build_butler, finish_butler, route_queries
from butlers.daemon.compose.modules import approval_migrations, memory_migrations
from butlers.daemon.services import Service
from butlers.roster import ButlerConfig
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries

RESCUE_S = 2.0


def migration_sets(config: ButlerConfig) -> list[MigrationSet]:
    schema = config.schema_name
    own = [base_migrations(schema), migrations(schema)]
    return [*own, *approval_migrations(config), *memory_migrations(config)]


def build(process: Process, config: ButlerConfig) -> Butler:
    modules = {name: Module(name=name) for name in config.modules.enabled()}
    butler = build_butler(process, config, modules=modules)
    specialist = Specialist(
        name=config.name,
        database=process.database,
        queries=Queries.load("butlers.butler.specialist", schema=config.schema_name),
        spawner=butler.spawner,
        notifier=butler.notifier,
        clock=process.clock,
        new_id=process.new_id,
    )
    inbox = RouteInbox(
        database=process.database,
        schema=config.schema_name,
        new_id=process.new_id,
        work=specialist.handle,
        owner=process.instance,
        clock=process.clock,
        telemetry=butler.telemetry,
        policy=InboxPolicy(lease=process.lease),
        suspects=process.suspects,
        wait_s=config.butler.registry.route_timeout_s,
    )
    queries = route_queries(butler)

    async def trace(request_id: UUID) -> dict[str, Any]:
        routes = await process.database.fetch(queries.routes_of_request, request_id)
        return {"route_inbox": [dict(row) for row in routes], "entries": await specialist.trace(request_id)}

    recorder = SignalRecorder(
        database=process.database, queries=specialist.queries, clock=process.clock, new_id=process.new_id
    )
    own_tools = recorder.tools() if config.name == RELATIONSHIP else []
    finish_butler(butler, handle=inbox.handle, jobs={}, trace=trace, tools=own_tools)
    butler.add(
        Service(
            name="route inbox rescuer",
            start=partial(inbox.rescue, grace_s=0),
            run=inbox.rescue,
            every_s=RESCUE_S,
            drain=partial(inbox.drain, config.butler.shutdown.timeout_s),
        )
    )
    return butler
