"""Starts a program that cannot see the folders of butlers. A script of its own: `python -I -S confine.py JSON`.

    a mount namespace of its own ──> an empty, read-only folder over each hidden one ──> no capabilities, no new ones
                                                                                      ──> the program

The program keeps its user, its HOME and its network: it needs them to sign in and to reach its provider. An account
that is not root gets a user namespace, too, in which it may mount; root gives its capabilities up, so that it cannot
take the empty folders away. In both cases the kernel also refuses the program a look into our memory and environment.

Where the kernel makes no namespaces the program starts without them: that it has no tools is the first line, and this
is the second. It does not protect what stands outside of the hidden folders, nor our doors on this machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

CANNOT_START = 125  # the exit code when the program could not be started; `errno N` is on stderr

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _NO_PROGRAMS = 1, 2, 4, 8
_PRIVATE = 0x4000 | 0x40000  # and everything below
_DROP_FROM_BOUNDS, _NO_NEW_PRIVILEGES = 24, 38
_LAST_CAPABILITY = 63
_CAPABILITIES_VERSION = 0x20080522


def _system() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_system(), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def _map_identity(uid: int, gid: int) -> None:
    for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(content, encoding="ascii")


def _hide(folders: list[str]) -> None:
    uid, gid = os.getuid(), os.getgid()
    _call("unshare", _NEW_MOUNTS if uid == 0 else _NEW_MOUNTS | _NEW_USER)
    if uid != 0:
        _map_identity(uid, gid)
    _call("mount", b"none", b"/", None, ctypes.c_ulong(_PRIVATE), None)
    flags = ctypes.c_ulong(_READ_ONLY | _NO_SETUID | _NO_DEVICES | _NO_PROGRAMS)
    for folder in folders:
        if Path(folder).is_dir():
            _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", flags, b"size=4k,mode=0555")


def _give_up_capabilities() -> None:
    for capability in range(_LAST_CAPABILITY + 1):
        _system().prctl(_DROP_FROM_BOUNDS, ctypes.c_ulong(capability), 0, 0, 0)  # those that the kernel knows
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())
    _call("prctl", _NO_NEW_PRIVILEGES, ctypes.c_ulong(1), 0, 0, 0)


def confine(folders: list[str]) -> str | None:
    """Hide the folders from this process and what it starts; what prevented it, if anything."""
    failure = None
    try:
        _hide(folders)
    except OSError as error:
        failure = f"{error.filename or 'namespace'}: {error.strerror}"
    try:
        _give_up_capabilities()
    except OSError as error:
        failure = failure or f"{error.filename}: {error.strerror}"
    return failure


def main() -> None:
    request = json.loads(sys.argv[1])
    failure = confine(request["hidden"])
    if request.get("probe"):
        sys.stdout.write(failure or "")
        return
    try:
        os.execv(request["argv"][0], request["argv"])  # noqa: S606  the program that butler.toml names
    except OSError as error:
        sys.stderr.write(f"errno {error.errno}\n")
        sys.exit(CANNOT_START)


if __name__ == "__main__":
    main()
