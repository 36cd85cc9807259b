"""The modules of one butler, wired: approvals, memory and calendar."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import time, timedelta
from functools import partial
from typing import TYPE_CHECKING

from butlers.butler.approvals import EXPIRY
from butlers.butler.approvals import migrations as approval_tables
from butlers.butler.approvals.approvals import Approvals
from butlers.butler.approvals.runner import ActionRunner, RunnerPolicy
from butlers.butler.approvals.tools import ApprovalTools, gate_tools
from butlers.butler.calendar import CalendarTools, Credentials, GoogleCalendar
from butlers.butler.calendar.tools import CalendarPolicy
from butlers.butler.memory import Memory
from butlers.butler.memory import migrations as memory_tables
from butlers.butler.memory.consolidation import LocalReader, ModelReader
from butlers.butler.memory.episodes import MemoryPolicy
from butlers.butler.memory.tools import MemoryTools
from butlers.butler.modules import CalendarModule, Module
from butlers.butler.schedules import Job
from butlers.butler.toolbox import AnyTool, Tool
from butlers.daemon.services import Service
from butlers.errors import ConfigurationError
from butlers.roster import ButlerConfig
from butlers.storage.migrations import MigrationSet

if TYPE_CHECKING:
    from butlers.daemon.compose.base import Butler, Process

EXPIRE_S, RECOVER_S = 5.0, 2.0
CLIENTS = {"google": GoogleCalendar}


def approval_migrations(config: ButlerConfig) -> list[MigrationSet]:
    """The tables, where the module is on."""
    return [approval_tables(config.schema_name)] if config.modules.approvals is not None else []


def build_approvals(process: Process, config: ButlerConfig) -> Approvals:
    module = config.modules.approvals
    return Approvals(
        database=process.database,
        schema=config.schema_name,
        clock=process.clock,
        new_id=process.new_id,
        gated=frozenset(module.gated_tools) if module is not None else frozenset(),
        expiry=timedelta(hours=module.expiry_hours) if module is not None else EXPIRY,
    )


def gated(butler: Butler, tools: Iterable[AnyTool]) -> list[AnyTool]:
    """A butler's tools, the gated ones behind the gate, with the tools that decide. Messenger gates its own way."""
    process, config = butler.process, butler.config
    if config.modules.approvals is None:
        return list(tools)
    approvals = build_approvals(process, config)
    runner = ActionRunner(approvals=approvals, owner=process.instance, policy=RunnerPolicy(lease=process.lease))

    butler.add(
        Service(name="approval expiry", start=approvals.expire, run=approvals.expire, every_s=EXPIRE_S),
        Service(
            name="approved actions",
            start=runner.recover,
            run=runner.recover,
            every_s=RECOVER_S,
            drain=partial(runner.drain, config.butler.shutdown.timeout_s),
        ),
    )
    return [
        *gate_tools(tools, approvals=approvals, runner=runner),
        *ApprovalTools(approvals=approvals, runner=runner).tools(),
    ]


def memory_migrations(config: ButlerConfig) -> list[MigrationSet]:
    """The tables, where the module is on."""
    return [memory_tables(config.schema_name)] if config.modules.memory is not None else []


def memory_of(butler: Butler) -> Memory | None:
    """The memory of a butler that has the module."""
    process, module = butler.process, butler.config.modules.memory
    if module is None:
        return None
    return Memory.of(
        database=process.database,
        schema=butler.config.schema_name,
        clock=process.clock,
        new_id=process.new_id,
        policy=MemoryPolicy(episode_ttl=timedelta(days=module.episode_ttl_days), important_from=module.important_from),
        worker=process.instance,
    )


def add_memory(butler: Butler) -> tuple[list[Tool], dict[str, Job]]:
    """The module's tools and jobs, if the butler has one; from now on its sessions are remembered."""
    memory = memory_of(butler)
    if memory is None:
        return [], {}
    butler.spawner.observe(memory.recorder().record)
    reader = LocalReader() if butler.spawner.runtime_name == "local" else ModelReader(butler.spawner)
    return MemoryTools(butler=butler.name, memory=memory).tools(), memory.jobs(reader)


def calendar_module(process: Process, config: ButlerConfig) -> tuple[Module, list[Tool]] | None:
    """The module and its tools, if the butler has one. Without credentials the tools are there and say so."""
    module = config.modules.calendar
    if module is None:
        return None
    missing = tuple(name for name in module.bot.variables() if not process.environment.get(name))
    calendar = None if missing else _connected(process, module)
    if missing and len(missing) < len(module.bot.variables()):
        raise _half_set(config, missing)
    tools = CalendarTools(
        butler=config.name,
        calendar=calendar,
        missing=missing,
        policy=CalendarPolicy(
            conflicts=module.conflicts,
            opens=time.fromisoformat(module.day_start),
            closes=time.fromisoformat(module.day_end),
        ),
        clock=process.clock,
        new_id=process.new_id,
    )
    host = Module(name="calendar", stop=calendar.close) if calendar else Module(name="calendar")
    return host, tools.tools()


def _connected(process: Process, module: CalendarModule) -> GoogleCalendar:
    client_id, client_secret, refresh_token = (process.environment[name] for name in module.bot.variables())
    return CLIENTS[module.provider](
        credentials=Credentials(client_id=client_id, client_secret=client_secret, refresh_token=refresh_token),
        clock=process.clock,
        base_url=process.settings.calendar_api_url,
        token_url=process.settings.calendar_token_url,
        calendar_id=module.calendar_id,
        timeout_s=module.timeout_s,
    )


def _half_set(config: ButlerConfig, missing: tuple[str, ...]) -> ConfigurationError:
    return ConfigurationError(
        f"environment variable {missing[0]} is not set",
        source=config.source,
        key="modules.calendar.bot",
        remedy=f"export {' '.join(f'{name}=...' for name in missing)}, or unset all of the calendar's variables",
    )
