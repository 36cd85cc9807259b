"""The data directory: what lies where. It holds secrets and mail, so only its owner may look into it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from butlers.errors import ConfigurationError


class Places:
    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self.tokens = self.root / "tokens.json"
        self.log = self.root / "logs" / "butlers.jsonl"
        self.wire_logs = self.root / "messenger"
        self.simulators = self.root / "simulators"
        self.run_file = self.root / "run.json"
        self._lock = self.root / "up.lock"

    def create(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (self.log.parent, self.wire_logs, self.simulators):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"cannot be created: {error.strerror}",
                source="--data-dir",
                key=str(self.root),
                remedy="choose a folder that you may write to",
            ) from None

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the directory for one `butlers up`; a second one is told who has it."""
        with self._lock.open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"a system is running here already (process {self.running().get('pid', 'unknown')})",
                    source="--data-dir",
                    key=str(self.root),
                    remedy="stop it, or use another --data-dir with a --port-offset",
                ) from None
            yield

    def announce(self, description: dict[str, Any]) -> None:
        """Tell the command line where the doors are."""
        temporary = self.run_file.with_suffix(".new")
        temporary.write_text(json.dumps(description | {"pid": os.getpid()}, indent=1))
        temporary.replace(self.run_file)

    def withdraw(self) -> None:
        self.run_file.unlink(missing_ok=True)

    def running(self) -> dict[str, Any]:
        """What the running system said of itself; empty when there is none or it died."""
        try:
            description: dict[str, Any] = json.loads(self.run_file.read_text())
            os.kill(description["pid"], 0)
        except (OSError, ValueError, KeyError):
            return {}
        return description
