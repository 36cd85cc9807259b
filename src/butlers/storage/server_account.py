"""The account the embedded server runs under.

PostgreSQL refuses to run as root. An ordinary user runs it under the own account; root hands it to another account,
which gets no capability and no group of root's. That account can enter neither root's folders nor the data directory:
the server is started inside its folder and knows it as `/proc/self/cwd`, so that it needs no way to it.

Root never writes into a folder that the other account owns: a link in there could lead the write anywhere. Files in
it are written by that account (`server_programs.py`).
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from butlers.errors import ConfigurationError

# An operator who wants the server apart from everything else makes a user "butlers".
_PREFERRED_ACCOUNTS = ("butlers", "postgres", "nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccount:
    """Who owns the server's files and runs its programs."""

    uid: int
    gid: int
    is_borrowed: bool = False  # true: we are root, and this is another account

    def own(self, folder: Path) -> None:
        """Hand one folder of ours to the account; nothing to do when it is our own account."""
        if self.is_borrowed:
            os.chown(folder, self.uid, self.gid, follow_symlinks=False)

    def process_options(self) -> Mapping[str, Any]:
        """What makes `subprocess` start a program as this account: the kernel drops root's capabilities with its id."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.is_borrowed else {}


def choose_account(pgdata: Path, *, source: str) -> ServerAccount:
    """Our own account, or another one when we are root. Existing files keep their owner."""
    owner = pgdata.stat() if pgdata.exists() else None
    if os.geteuid() != 0:
        return _own_account(owner, source=source)
    if owner is not None and owner.st_uid != 0:
        return ServerAccount(uid=owner.st_uid, gid=owner.st_gid, is_borrowed=True)
    entry = _first_known_account(source=source)
    return ServerAccount(uid=entry.pw_uid, gid=entry.pw_gid, is_borrowed=True)


def _own_account(owner: os.stat_result | None, *, source: str) -> ServerAccount:
    if owner is not None and owner.st_uid != os.geteuid():
        raise ConfigurationError(
            f"the database files belong to user id {owner.st_uid}, and this is user id {os.geteuid()}",
            source=source,
            key="postgres",
            remedy="run as the user that created the data directory, or choose another data directory",
        )
    return ServerAccount(uid=os.geteuid(), gid=os.getegid())


def _first_known_account(*, source: str) -> pwd.struct_passwd:
    for name in _PREFERRED_ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ConfigurationError(
        "PostgreSQL does not run as root, and there is no other user to run it",
        source=source,
        key="postgres",
        remedy="create a system user named butlers, run as an ordinary user, or set DATABASE_URL",
    )
