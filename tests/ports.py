"""Ports for servers of other processes, which nobody else takes between the choice and the start.

They lie below the ports that Linux hands to whoever asks for any, and below the couriers' of whole systems; a process
that tests keeps its block of them.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

from butlers.daemon.demo.instance import PortRange
from butlers.daemon.settings import shipped_roster
from butlers.roster import load_roster
from butlers.simulators import simulator_ports

HOST = "127.0.0.1"
_FIRST, _END, _BLOCK = 20_000, 29_700, 100


def free_port() -> int:
    """A port that nobody listens on; this process gives it to nobody else for the next hundred calls."""
    _, numbers = _block()
    for port in itertools.islice(numbers, _BLOCK):
        if _is_free(port):
            return port
    raise AssertionError(f"all {_BLOCK} ports of this process are in use")


@contextmanager
def free_offset() -> Iterator[int]:
    """A `--port-offset` with which every door and simulator of the shipped roster has a free port."""
    doors = [config.butler.port for config in load_roster(shipped_roster()).values()]
    ports = PortRange([*doors, *simulator_ports().values()])
    try:
        yield ports.offset
    finally:
        ports.give_back()


@cache
def _block() -> tuple[IO[str], Iterator[int]]:
    """The lock that keeps the block until the process ends, and its ports round and round."""
    for first in range(_FIRST, _END, _BLOCK):
        lock = (Path(tempfile.gettempdir()) / f"butlers-test-ports-{os.getuid()}-{first}.lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return lock, itertools.cycle(range(first, first + _BLOCK))
    raise AssertionError("every block of ports is in use")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
