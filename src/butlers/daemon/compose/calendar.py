"""The calendar module, wired: its client and its tools."""

from __future__ import annotations

from datetime import time

from butlers.butler.calendar import CalendarTools, Credentials, GoogleCalendar
from butlers.butler.calendar.tools import CalendarPolicy
from butlers.butler.config import ButlerConfig
from butlers.butler.module import Module
from butlers.butler.module_config import CalendarModule
from butlers.butler.toolbox import Tool
from butlers.daemon.compose.process import Process
from butlers.errors import ConfigurationError

CLIENTS = {"google": GoogleCalendar}


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
