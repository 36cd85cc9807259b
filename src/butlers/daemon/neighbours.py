"""What a lone role (`butlers run ROLE`) finds in its data directory: the doors and the simulators of the system there.

`butlers up` writes down where everything is. A second Messenger beside it needs no settings of its own to find the
same simulated providers and the same Switchboard; what is set for it explicitly wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from butlers.butler.config import ButlerConfig, check_credentials
from butlers.daemon.owner_credentials import TYPES
from butlers.daemon.settings import Settings
from butlers.daemon.simulation import Simulated, simulated_environment, what_to_simulate
from butlers.errors import ConfigurationError

_PORTS_OF = {
    "telegram": "telegram_simulator",
    "smtp": "smtp_simulator",
    "imap": "imap_simulator",
    "mail_control": "mail_control",
    "calendar": "calendar_simulator",
}


def found_ports(settings: Settings, running: Mapping[str, Any], ours: Collection[str]) -> Settings:
    """The settings with the ports that a running system announced, except those of our own doors."""
    return settings.model_copy(update={"ports": dict(_announced(running, ours)) | settings.ports})


def simulators_beside(
    settings: Settings, roster: Mapping[str, ButlerConfig], environment: Mapping[str, str], running: Mapping[str, Any]
) -> Simulated:
    """Told to, the simulators wherever the settings say; otherwise those that run here and are wanted."""
    if settings.simulators == "on":
        return Simulated(telegram=True, mail=True, calendar=True)
    wanted, there = what_to_simulate(settings, roster, environment), running.get("simulators", {})
    return Simulated(
        telegram=wanted.telegram and "telegram" in there,
        mail=wanted.mail and {"smtp", "imap"} <= there.keys(),
        calendar=wanted.calendar and "calendar" in there,
    )


def check_role(
    settings: Settings,
    roster: Mapping[str, ButlerConfig],
    names: Collection[str],
    simulated: Simulated,
    environment: Mapping[str, str],
) -> None:
    """Credentials that are missing, with the one remedy that only a lone role has."""
    completed = simulated_environment(simulated, roster, environment)
    try:
        for name in names:
            check_credentials(roster[name], completed, elsewhere=TYPES)
    except ConfigurationError as error:
        if settings.simulators != "auto":
            raise
        raise ConfigurationError(
            error.problem,
            source=error.source,
            key=error.key,
            remedy=f"{error.remedy}, or use --set simulators=on while `butlers simulate` runs",
        ) from None


def _announced(running: Mapping[str, Any], ours: Collection[str]) -> Iterator[tuple[str, int]]:
    doors = {name: address for name, address in running.get("doors", {}).items() if name not in ours}
    simulators = {_PORTS_OF[name]: at for name, at in running.get("simulators", {}).items() if name in _PORTS_OF}
    for name, address in (doors | simulators).items():
        port = urlsplit(address if "//" in address else f"//{address}").port
        if port is not None:
            yield name, port
