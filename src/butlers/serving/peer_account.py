"""The OS account of a caller on this machine, from the kernel's own table of connections.

A connection over loopback has both its ends in that table, and each end names the account that opened it. Linux answers
for one connection by `sock_diag` without reading the others.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST = 4, 20, 1
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_QUESTION = struct.Struct("=BBBBI")  # family, protocol, extensions, padding, states
_SOCKET = struct.Struct("!HH16s16sIII")  # ports, addresses, interface, cookie
_UID_AT = _HEADER.size + 4 + _SOCKET.size + 12
_ANY = 0xFFFFFFFF


def is_own_account(client: Sequence[Any] | None, server: Sequence[Any] | None) -> bool:
    """Whether a caller over loopback runs in the account of this process, or as root.

    False when the kernel does not say. Systems other than Linux have no such question: there every local caller counts.
    """
    if not sys.platform.startswith("linux"):
        return True
    if client is None or server is None:
        return False
    return _account(client, server) in {0, os.geteuid()}


def _account(client: Sequence[Any], server: Sequence[Any]) -> int | None:
    """The account that owns the end of the connection that is not ours."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1)
            kernel.send(_question(client, server))
            answer = kernel.recv(8192)
    except (OSError, ValueError):
        return None
    kind = _HEADER.unpack_from(answer)[1]
    if kind != _SOCK_DIAG_BY_FAMILY or len(answer) < _UID_AT + 4:
        return None
    uid: int = struct.unpack_from("=I", answer, _UID_AT)[0]
    return uid


def _question(client: Sequence[Any], server: Sequence[Any]) -> bytes:
    theirs, ours = (ipaddress.ip_address(end[0]) for end in (client, server))
    family = socket.AF_INET6 if theirs.version == 6 else socket.AF_INET
    ends = _SOCKET.pack(client[1], server[1], theirs.packed, ours.packed, 0, _ANY, _ANY)
    asked = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY) + ends
    return _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + asked
