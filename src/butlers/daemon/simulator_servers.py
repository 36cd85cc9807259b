"""The simulators' side of their process: served until told to stop. Loaded only there, for their weight."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TypeVar

from starlette.routing import BaseRoute

from butlers.channels.email.simulator import MailSimulator, serve_mail
from butlers.channels.telegram.simulator import TelegramSimulator, serve_telegram
from butlers.channels.webhook.simulator import WebhookSimulator, serve_webhook
from butlers.clock import Clock
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings, port_remedy
from butlers.daemon.simulation import ADDRESS, OWNER_ADDRESS, PASSWORD, Simulated, addresses
from butlers.errors import ConfigurationError
from butlers.simulators.calendar import CalendarSimulator, serve_calendar

T = TypeVar("T")
_PORT_PATIENCE_S = 5.0  # a predecessor may still be closing its connections


async def run_simulators(settings: Settings, simulated: Simulated, clock: Clock, stop: asyncio.Event) -> None:
    """Serve until told to stop; announces itself with one JSON line."""
    places = Places(settings.data_dir)
    places.create()
    async with AsyncExitStack() as stack:
        mail_control: list[BaseRoute] = []
        if simulated.mail:
            mail = await _patiently(clock, lambda: stack.enter_async_context(_mail(settings, places, clock)))
            mail_control += mail.control_routes()
        if simulated.telegram:
            await _patiently(clock, lambda: stack.enter_async_context(_telegram(settings, places, clock, mail_control)))
        if simulated.calendar:
            await _patiently(clock, lambda: stack.enter_async_context(_calendar(settings, places, clock)))
        if simulated.webhook:
            await _patiently(clock, lambda: stack.enter_async_context(_webhook(settings, clock)))
        print(json.dumps({"ready": True} | addresses(settings, simulated)), flush=True)  # noqa: T201 - it is awaited
        await stop.wait()


def _telegram(
    settings: Settings, places: Places, clock: Clock, beside: Sequence[BaseRoute]
) -> AbstractAsyncContextManager[TelegramSimulator]:
    port = settings.simulator_port("telegram_simulator")
    return serve_telegram(
        settings.simulator_host,
        port,
        clock=clock,
        journal_path=places.simulators / "telegram.jsonl",
        extra_routes=beside,
    )


def _mail(settings: Settings, places: Places, clock: Clock) -> AbstractAsyncContextManager[MailSimulator]:
    return serve_mail(
        settings.simulator_host,
        settings.simulator_port("smtp_simulator"),
        settings.simulator_port("imap_simulator"),
        settings.simulator_port("mail_control"),
        clock=clock,
        accounts={ADDRESS: PASSWORD, OWNER_ADDRESS: PASSWORD},
        journal_path=places.simulators / "mail.jsonl",
    )


def _calendar(settings: Settings, places: Places, clock: Clock) -> AbstractAsyncContextManager[CalendarSimulator]:
    port = settings.simulator_port("calendar_simulator")
    return serve_calendar(settings.simulator_host, port, clock=clock, journal_path=places.simulators / "calendar.jsonl")


def _webhook(settings: Settings, clock: Clock) -> AbstractAsyncContextManager[WebhookSimulator]:
    return serve_webhook(settings.simulator_host, settings.simulator_port("webhook_simulator"), clock=clock)


async def _patiently(clock: Clock, start: Callable[[], Awaitable[T]]) -> T:
    deadline = clock.monotonic() + _PORT_PATIENCE_S
    while True:
        try:
            return await start()
        except ConfigurationError as error:
            if not _is_taken(error):
                raise
            if clock.monotonic() > deadline:
                raise _as_we_say(error) from None
        except OSError:
            if clock.monotonic() > deadline:
                raise
        await clock.sleep(0.1)


def _is_taken(error: ConfigurationError) -> bool:
    """Somebody else has the port: the only trouble that may pass by itself."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE


def _as_we_say(error: ConfigurationError) -> ConfigurationError:
    """A simulator does not know the options of this command line."""
    return ConfigurationError(error.problem, source=error.source, key=error.key, remedy=port_remedy())
