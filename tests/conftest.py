"""What tests of every kind may ask for."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2._transports.default
import pytest
from hypothesis import settings

from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import SESSION_DIRECTORY, ServerDirectory, cloned_database, session_server

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("butlers", deadline=None)
settings.load_profile("butlers")

# A client of httpx2 reads all certificates of the machine, 50 ms each time; in tests they read them once.
_transport: Any = httpx2._transports.default
_transport.create_ssl_context = functools.cache(_transport.create_ssl_context)

# Java for small data and a short life, also in processes that tests start: optimising costs more than it gains.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

_SERVER_DIRECTORY = pytest.StashKey[ServerDirectory]()


def pytest_configure(config: pytest.Config) -> None:
    # Under `nohup` the processes that tests start would inherit that a closed terminal is ignored, and respect it.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # xdist's workers, and a pytest that a test starts, find the variable set and share the directory.
    if SESSION_DIRECTORY not in os.environ:
        directory = ServerDirectory()
        os.environ[SESSION_DIRECTORY] = str(directory.path)
        config.stash[_SERVER_DIRECTORY] = directory


def pytest_unconfigure(config: pytest.Config) -> None:
    directory = config.stash.get(_SERVER_DIRECTORY, None)
    if directory is not None:
        del os.environ[SESSION_DIRECTORY]
        directory.remove()


@pytest.hookimpl(optionalhook=True)  # without xdist nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.scheduling import ByFile

    config.option.loadscopereorder = False  # whole systems come first in the alphabet, and take longest
    return ByFile(config, log)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """The embedded server that all tests of the session share."""
    server = session_server()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
async def empty_database(postgres_server: EmbeddedPostgres) -> AsyncIterator[Database]:
    """A database without any table of ours."""
    async with cloned_database(postgres_server) as database:
        yield database
