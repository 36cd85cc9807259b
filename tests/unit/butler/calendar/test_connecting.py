"""When the calendar is simulated, connected, not connected, or half connected, which is a mistake."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from butlers.butler.modules import CalendarModule
from butlers.clock import ManualClock
from butlers.daemon.compose.modules import calendar_module
from butlers.daemon.settings import Settings, shipped_roster
from butlers.daemon.simulation import (
    Simulated,
    addresses,
    simulated_environment,
    simulated_settings,
    what_to_simulate,
)
from butlers.errors import ConfigurationError
from butlers.ids import Uuid7Factory
from butlers.roster import load_roster

ROSTER = load_roster(shipped_roster())
VARIABLES = CalendarModule().bot.variables()
COMPLETE = dict.fromkeys(VARIABLES, "value")
ONLY_CALENDAR = Simulated({"calendar"})


def settings(tmp_path: Path, **more: Any) -> Settings:
    return Settings(data_dir=tmp_path, **more)


def process(tmp_path: Path, environment: dict[str, str]) -> Any:
    clock = ManualClock()
    return SimpleNamespace(
        environment=environment, settings=settings(tmp_path), clock=clock, new_id=Uuid7Factory(clock)
    )


@pytest.mark.parametrize(
    ("mode", "environment", "simulated"),
    [
        ("auto", {}, True),
        ("auto", COMPLETE, False),
        ("auto", {VARIABLES[0]: "half"}, False),
        ("auto", {"BUTLER_TELEGRAM_TOKEN": "real"}, False),
        ("auto", {"BUTLER_EMAIL_ADDRESS": "real"}, False),
        ("on", COMPLETE, True),
        ("off", {}, False),
    ],
)
def test_the_calendar_is_simulated_when_no_variable_of_any_provider_is_set(
    tmp_path: Path, mode: str, environment: dict[str, str], simulated: bool
) -> None:
    assert ("calendar" in what_to_simulate(settings(tmp_path, simulators=mode), ROSTER, environment)) is simulated


def test_a_simulated_calendar_has_an_address_and_made_up_credentials(tmp_path: Path) -> None:
    chosen = settings(tmp_path, ports={"calendar_simulator": 4711})
    there = simulated_settings(chosen, ONLY_CALENDAR)
    assert there.calendar_api_url == "http://127.0.0.1:4711/calendar/v3"
    assert there.calendar_token_url == "http://127.0.0.1:4711/token"
    assert addresses(chosen, ONLY_CALENDAR) == {"calendar": "http://127.0.0.1:4711"}
    assert simulated_environment(ONLY_CALENDAR, ROSTER, {}).keys() == set(VARIABLES)


async def test_a_module_without_credentials_stands_there_unconnected(tmp_path: Path) -> None:
    for environment in ({}, COMPLETE):
        found = calendar_module(process(tmp_path, environment), ROSTER["messenger"])
        assert found is not None
        module, tools = found
        assert (module.name, len(tools)) == ("calendar", 6)
        await module.stop()


def test_half_of_the_credentials_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        calendar_module(process(tmp_path, {VARIABLES[0]: "value"}), ROSTER["messenger"])
    assert (caught.value.key, VARIABLES[1] in str(caught.value)) == ("modules.calendar.bot", True)


def test_a_butler_without_the_module_has_no_calendar(tmp_path: Path) -> None:
    assert calendar_module(process(tmp_path, COMPLETE), ROSTER["health"]) is None


@pytest.mark.parametrize("wrong", [{"day_start": "8"}, {"day_end": "24:00"}, {"day_start": "20:00"}])
def test_working_hours_must_be_hours_in_order(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"time of day|later than"):
        CalendarModule.model_validate(wrong)
