"""Simulated providers: what they share (`engine`, `journal`), the calendar, and which ones are installed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from butlers.channels.channel import Door, Simulator
from butlers.channels.registry import channels

CALENDAR = Simulator(
    name="calendar",
    serve="butlers.simulators.calendar:serve_calendar",
    doors=(Door(name="calendar", port="calendar_simulator", usual=40183, scheme="http://"),),
    credentials={
        "client_id": "simulated-client.apps.butlers.example",
        "client_secret": "simulated-client-not-a-secret",
        "refresh_token": "simulated-refresh-not-a-secret",
    },
    settings=lambda host, ports: {
        "calendar_api_url": f"http://{host}:{ports['calendar_simulator']}/calendar/v3",
        "calendar_token_url": f"http://{host}:{ports['calendar_simulator']}/token",
    },
)


@cache
def simulators() -> Mapping[str, Simulator]:
    """By name: those that the installed channels bring and the calendar's; last those that run only on request."""
    brought = [channel.simulator for channel in channels().values() if channel.simulator is not None]
    return {simulator.name: simulator for simulator in sorted((*brought, CALENDAR), key=lambda one: one.on_request)}


@cache
def simulator_ports() -> Mapping[str, int]:
    return {door.port: door.usual for simulator in simulators().values() for door in simulator.doors}
