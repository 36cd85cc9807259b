"""What a lone role makes of the system that runs in its data directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from butlers.daemon.places import check_role, found_ports, simulators_beside
from butlers.daemon.settings import Settings, check_port_names, shipped_roster
from butlers.daemon.simulation import Simulated, simulated_settings
from butlers.errors import ConfigurationError
from butlers.roster import load_roster

ROSTER = load_roster(shipped_roster())
RUNNING: dict[str, Any] = {
    "doors": {"switchboard": "http://127.0.0.1:50100", "messenger": "http://127.0.0.1:50104"},
    "simulators": {
        "telegram": "http://127.0.0.1:50181",
        "mail_control": "http://127.0.0.1:50182",
        "smtp": "127.0.0.1:50125",
        "imap": "127.0.0.1:50143",
        "calendar": "http://127.0.0.1:50183",
    },
}
EVERYTHING = Simulated({"telegram", "mail", "calendar"})
NOTHING = Simulated()


def settings(**given: Any) -> Settings:
    return Settings(data_dir=Path("/nowhere"), **given)


def test_announced_ports_are_used_except_our_own_and_those_that_were_set() -> None:
    found = found_ports(settings(ports={"smtp_simulator": 7, "messenger": 40204}), RUNNING, ["messenger"])
    assert found.ports["messenger"] == 40204
    assert found.ports["switchboard"] == 50100
    simulated = simulated_settings(found, EVERYTHING)
    assert simulated.telegram_api_url == "http://127.0.0.1:50181"
    assert (simulated.smtp_port, simulated.imap_port) == (7, 50143)
    # Without a port of its own it would take that of the other one only if it were told to.
    assert found_ports(settings(), RUNNING, ["messenger"]).port("messenger", 40104) == 40104


def test_simulators_are_used_when_they_run_here_and_are_wanted() -> None:
    assert simulators_beside(settings(), ROSTER, {}, RUNNING) == EVERYTHING
    assert simulators_beside(settings(), ROSTER, {}, {}) == NOTHING
    assert simulators_beside(settings(simulators="off"), ROSTER, {}, RUNNING) == NOTHING
    assert simulators_beside(settings(simulators="on"), ROSTER, {}, {}) == EVERYTHING
    # Real credentials are for the real provider, whatever runs beside it.
    real = simulators_beside(settings(), ROSTER, {"BUTLER_TELEGRAM_TOKEN": "t"}, RUNNING)
    assert real == Simulated({"mail"})


@pytest.mark.parametrize(("mode", "named"), [("auto", True), ("off", False)])
def test_missing_credentials_name_the_simulators_where_they_would_help(mode: str, named: bool) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_role(settings(simulators=mode), ROSTER, ["messenger"], NOTHING, {})
    assert "is not set" in refused.value.problem
    assert ("--set simulators=on" in refused.value.remedy) is named
    check_role(settings(simulators=mode), ROSTER, ["messenger"], EVERYTHING, {})


def test_a_port_of_nobody_is_refused() -> None:
    check_port_names(settings(ports={"webhook_simulator": 5, "general": 6}), ROSTER)
    with pytest.raises(
        ConfigurationError, match=r"ports: bogus: .*choose among calendar_simulator, courier, finance, "
    ):
        check_port_names(settings(ports={"general": 6, "bogus": 7}), ROSTER)
