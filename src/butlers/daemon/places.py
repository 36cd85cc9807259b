"""The data directory: what lies where. It holds secrets and mail, so only its owner may look into it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from butlers.channels.registry import owner_credential_kinds
from butlers.daemon.settings import Settings
from butlers.daemon.simulation import Simulated, simulated_environment, what_to_simulate
from butlers.errors import ConfigurationError
from butlers.roster import ButlerConfig, check_credentials
from butlers.simulators import simulators
from butlers.storage.files import make_private


class Places:
    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self.tokens = self.root / "tokens.json"
        self.log = self.root / "logs" / "butlers.jsonl"
        self.simulator_log = self.root / "logs" / "simulators.jsonl"
        self.simulator_errors = self.root / "logs" / "simulators.log"  # what it said beside its log, since its start
        self.wire_logs = self.root / "messenger"
        self.workers = self.root / "switchboard"
        self.simulators = self.root / "simulators"
        self.lake = self.root / "lake"
        self.pipeline = self.root / "pipeline"
        self.courier = self.root / "courier"
        self.unsubscribe_key = self.root / "unsubscribe.key"
        self.run_file = self.root / "run.json"
        self._lock = self.root / "up.lock"

    def create(self) -> None:
        make_private(self.root)
        try:
            for folder in (self.log.parent, self.wire_logs, self.simulators):
                folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise self._unusable(f"cannot be created: {error.strerror}") from None

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the directory for one `butlers up`; a second one is told who has it."""
        with self._open_lock() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"a system is running here already (process {_read_number(lock)})",
                    source="--data-dir",
                    key=str(self.root),
                    remedy="stop it, or use another --data-dir with a --port-offset",
                ) from None
            # In the lock itself, so that a system that is still starting can be named, too.
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    def owner(self) -> str | None:
        """The process id of a `butlers up` that holds the directory, running or still starting. Changes nothing."""
        try:
            with self._lock.open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return _read_number(lock)
        except OSError:
            return None
        return None

    def announce(self, description: dict[str, Any], role: str | None = None) -> None:
        """Tell the command line where the doors are: all of them, or those of one role's own process."""
        file = self._run_file_of(role)
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps(description | {"pid": os.getpid()}, indent=1))
        temporary.replace(file)

    def withdraw(self, role: str | None = None) -> None:
        self._run_file_of(role).unlink(missing_ok=True)

    def running(self) -> dict[str, Any]:
        """What the running system said of itself, in one process or in several; empty when there is none."""
        whole = _alive(self.run_file)
        if whole:
            return whole
        parts = [part for file in sorted(self.root.glob("run-*.json")) if (part := _alive(file))]
        merged: dict[str, Any] = {"doors": {}, "simulators": {}, "pid": ", ".join(str(part["pid"]) for part in parts)}
        for part in parts:
            merged["doors"] |= part["doors"]
            merged["simulators"] |= part["simulators"]
        return merged if parts else {}

    def _run_file_of(self, role: str | None) -> Path:
        return self.root / f"run-{role}.json" if role else self.run_file

    def _open_lock(self) -> IO[str]:
        try:
            return self._lock.open("a+")
        except OSError as error:
            raise self._unusable(f"cannot be written to: {error.strerror}") from None

    def _unusable(self, problem: str) -> ConfigurationError:
        return ConfigurationError(
            problem, source="--data-dir", key=str(self.root), remedy="choose a folder that you may write to"
        )


def _alive(file: Path) -> dict[str, Any]:
    """The description in a file whose process lives; a file that is damaged or out of date says nothing."""
    try:
        description: dict[str, Any] = json.loads(file.read_text())
        os.kill(description["pid"], 0)
        whole = all(isinstance(description[group], dict) for group in ("doors", "simulators"))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return {}
    return description if whole else {}


def _read_number(lock: IO[str]) -> str:
    lock.seek(0)
    return lock.read(20).strip() or "unknown"


def found_ports(settings: Settings, running: Mapping[str, Any], ours: Collection[str]) -> Settings:
    """The settings with the ports that a running system announced, except those of our own doors."""
    return settings.model_copy(update={"ports": dict(_announced(running, ours)) | settings.ports})


def simulators_beside(
    settings: Settings, roster: Mapping[str, ButlerConfig], environment: Mapping[str, str], running: Mapping[str, Any]
) -> Simulated:
    """Told to, the simulators wherever the settings say; otherwise those that run here and are wanted."""
    needed, there = what_to_simulate(settings, roster, environment), running.get("simulators", {})
    if settings.simulators == "on":
        return needed
    return Simulated(name for name in needed if all(door.name in there for door in simulators()[name].doors))


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
            check_credentials(roster[name], completed, elsewhere=owner_credential_kinds())
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
    ports = {door.name: door.port for simulator in simulators().values() for door in simulator.doors}
    simulated = {ports[name]: address for name, address in running.get("simulators", {}).items() if name in ports}
    for name, address in (doors | simulated).items():
        port = urlsplit(address if "//" in address else f"//{address}").port
        if port is not None:
            yield name, port
