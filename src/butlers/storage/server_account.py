"""The account the embedded server runs under.

PostgreSQL refuses to run as root. An ordinary user simply runs it; root hands it to another account with `setpriv`.
That account may not be able to enter root's folders, so it is also given the capability `dac_override`: nothing but
the data directory itself changes hands, and no parent folder's permissions are touched.
"""

from __future__ import annotations

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

from butlers.errors import ConfigurationError

_PREFERRED_ACCOUNTS = ("postgres", "nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccount:
    """Who owns the data directory, and what must stand before a command so that it runs as that account."""

    uid: int
    gid: int
    prefix: tuple[str, ...] = ()

    def own(self, path: Path) -> None:
        """Hand one file or folder to the account; nothing to do when it is our own."""
        if self.prefix:
            os.chown(path, self.uid, self.gid)


def choose_account(pgdata: Path, *, source: str) -> ServerAccount:
    """Our own account, or another one when we are root. An existing data directory keeps its owner."""
    owner = pgdata.stat() if pgdata.exists() else None
    if os.geteuid() != 0:
        return _own_account(owner, source=source)
    if owner is not None and owner.st_uid != 0:
        return _borrowed_account(owner.st_uid, owner.st_gid, source=source)
    entry = _first_known_account(source=source)
    return _borrowed_account(entry.pw_uid, entry.pw_gid, source=source)


def _own_account(owner: os.stat_result | None, *, source: str) -> ServerAccount:
    if owner is not None and owner.st_uid != os.geteuid():
        raise ConfigurationError(
            f"the database files belong to user id {owner.st_uid}, and this is user id {os.geteuid()}",
            source=source,
            key="postgres",
            remedy="run as the user that created the data directory, or choose another data directory",
        )
    return ServerAccount(uid=os.geteuid(), gid=os.getegid())


def _borrowed_account(uid: int, gid: int, *, source: str) -> ServerAccount:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ConfigurationError(
            "PostgreSQL does not run as root, and setpriv, which would hand it to another user, is missing",
            source=source,
            key="postgres",
            remedy="run as an ordinary user, install util-linux, or set DATABASE_URL",
        )
    capability = "+dac_override"
    prefix = (
        setpriv,
        f"--reuid={uid}",
        f"--regid={gid}",
        "--clear-groups",
        # Without it access(2), which PostgreSQL asks before it runs a program, would not count the capability.
        "--securebits=+no_setuid_fixup",
        f"--inh-caps={capability}",
        f"--ambient-caps={capability}",
        "--",
    )
    return ServerAccount(uid=uid, gid=gid, prefix=prefix)


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
        remedy="create a user named postgres, run as an ordinary user, or set DATABASE_URL",
    )
