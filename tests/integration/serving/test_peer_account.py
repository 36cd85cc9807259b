"""The account of a caller over loopback: by `sock_diag`, and from the table where a sandbox has none."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from butlers.serving import peer_account

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")


@pytest.fixture(params=[("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)], ids=["IPv4", "IPv6"])
def connection(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends, the caller's first."""
    host, family = request.param
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"{host} is not there")
    with listener, socket.create_connection(listener.getsockname()[:2]) as theirs, listener.accept()[0] as ours:
        yield theirs, ours


def asked(ours: socket.socket, *, by_table: bool) -> int | None:
    ends, family = peer_account._packed(ours.getpeername(), ours.getsockname())
    return peer_account._listed(ends, family) if by_table else peer_account._asked(ends, family)


@pytest.mark.parametrize("by_table", [False, True], ids=["sock_diag", "table"])
def test_both_ways_name_the_account_of_an_open_end_and_nobody_behind_a_closed_one(
    connection: tuple[socket.socket, socket.socket], by_table: bool
) -> None:
    theirs, ours = connection
    assert asked(ours, by_table=by_table) == os.geteuid()
    theirs.close()
    assert asked(ours, by_table=by_table) is None


@pytest.mark.parametrize("ends", [(None, None), (("192.0.2.1", 5), ("127.0.0.1", 6)), (("127.0.0.1", 99_999),) * 2])
def test_what_is_no_connection_over_loopback_has_no_account(ends: Any) -> None:
    assert peer_account._account(*ends) is None


def test_without_sock_diag_the_table_answers(
    connection: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(peer_account, "_asked", missing)
    _, ours = connection
    assert peer_account._account(ours.getpeername(), ours.getsockname()) == os.geteuid()
