"""Servers that conformance suites share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One for the tests of this process; each test has keys of its own."""
    with RedisServer() as server:
        yield server
