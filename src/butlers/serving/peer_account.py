"""The OS account of a caller on this machine, from the kernel's own table of connections."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST = 4, 20, 1
_KEY = "butlers.peer_account"  # in a scope's state
_ESTABLISHED = 1
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_QUESTION = struct.Struct("=BBBBI")  # family, protocol, extensions, padding, states
_ENDS = struct.Struct("!HH16s16s")  # ports, addresses
_REST = struct.Struct("=III")  # interface, cookie
_ANSWER = struct.Struct(f"={_HEADER.size}xxBxx{_ENDS.size}s{_REST.size}x12xII")  # state, ends, account, inode
_ANY = 0xFFFFFFFF


def with_account(state: Mapping[str, Any], transport: asyncio.BaseTransport) -> dict[str, Any]:
    """The state of a connection's scopes, with the account at its other end."""
    return {**state, _KEY: _account(transport.get_extra_info("peername"), transport.get_extra_info("sockname"))}


def is_own_account(scope: Mapping[str, Any]) -> bool:
    """Whether a caller over loopback runs in the account of this process, or as root.

    False when the kernel did not say. Systems other than Linux have no such question: there every local caller counts.
    """
    if not sys.platform.startswith("linux"):
        return True
    return scope.get("state", {}).get(_KEY) in {0, os.geteuid()}


def _account(theirs: Any, ours: Any) -> int | None:
    """The account that owns the end of the connection that is not ours; None when it does not stand, or is unknown."""
    try:
        ends, family = _packed(theirs, ours)
    except (ValueError, TypeError, struct.error):  # from another machine, or no TCP at all
        return None
    try:
        return _asked(ends, family)
    except (OSError, AttributeError):  # no `sock_diag` here
        return _listed(ends, family)


def _asked(ends: bytes, family: int) -> int | None:
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1)
            kernel.send(_question(ends, family))
            answer = kernel.recv(8192)
        state, answered, account, inode = _ANSWER.unpack_from(answer)
    except struct.error:  # a refusal, which is shorter: there is no such connection
        return None
    stands = state == _ESTABLISHED and answered == ends and inode != 0
    return int(account) if stands and _HEADER.unpack_from(answer)[1] == _SOCK_DIAG_BY_FAMILY else None


def _packed(theirs: Any, ours: Any) -> tuple[bytes, int]:
    addresses = [ipaddress.ip_address(end[0]) for end in (theirs, ours)]
    if not all(address.is_loopback for address in addresses):
        raise ValueError("the connection comes from another machine")
    ends = _ENDS.pack(theirs[1], ours[1], *(address.packed for address in addresses))
    return ends, socket.AF_INET6 if addresses[0].version == 6 else socket.AF_INET


def _listed(ends: bytes, family: int) -> int | None:
    """The same from the table of all connections: address and port as `0100007F:1F90`, state, account, inode."""
    their_port, our_port, theirs, ours = _ENDS.unpack(ends)
    size, table = (16, "tcp6") if family == socket.AF_INET6 else (4, "tcp")
    named = [f"{_hexadecimal(theirs[:size])}:{their_port:04X}", f"{_hexadecimal(ours[:size])}:{our_port:04X}"]
    try:
        lines = Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines[1:]:
        fields = line.split()
        if fields[1:3] == named and int(fields[3], 16) == _ESTABLISHED and fields[9] != "0":
            return int(fields[7])
    return None


def _hexadecimal(address: bytes) -> str:
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(address) // 4}I", address))


def _question(ends: bytes, family: int) -> bytes:
    asked = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY) + ends + _REST.pack(0, _ANY, _ANY)
    return _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + asked
