"""Who is calling, and for whom it may speak. Both come from the bearer token (or the in-process principal), never from
a payload.

Tokens live in one file of mode 0600 in the data directory. Running services notice a change of the file, so that a
revoked token is refused at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import ConfigurationError
from butlers.operations.operation import Role

OPERATOR = "operator"  # the token that the command line of this machine uses


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Whom a caller may speak for beside itself: senders at one endpoint of a channel."""

    channel: str
    endpoint: str | None = None  # the bot or the mailbox; None: each one of the channel
    senders: tuple[str, ...] = ()  # none: each one that the channel has authenticated


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The authenticated principal of one call."""

    name: str
    role: Role
    grants: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    name: str
    role: Role
    secret: str
    issued_at: str  # RFC 3339
    grants: tuple[Grant, ...] = ()

    def __repr__(self) -> str:
        return f"Token(name={self.name!r}, role={self.role.value!r}, secret='***')"


class TokenFile:
    """The tokens on disk: name -> token, one live token per name."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        self._by_digest: dict[bytes, Token] = {}

    def caller_of(self, secret: str) -> Caller | None:
        """The principal a token belongs to, or None for an unknown or revoked one."""
        self._reload_when_changed()
        token = self._by_digest.get(_digest(secret))
        return Caller(name=token.name, role=token.role, grants=token.grants) if token else None

    def tokens(self) -> list[Token]:
        self._reload_when_changed()
        return sorted(self._by_digest.values(), key=lambda token: token.name)

    def secret_of(self, name: str) -> str | None:
        return next((token.secret for token in self.tokens() if token.name == name), None)

    def issue(self, name: str, role: Role, grants: tuple[Grant, ...] = ()) -> Token:
        """Make a new token; an earlier one of the same name stops working. Two names must differ in more than case,
        because keys and identities that are made of them do not.
        """
        with self._locked():
            if other := next((t.name for t in self.tokens() if t.name != name and _alike(t.name, name)), None):
                raise invalid("name", f"differs from {other!r}, who has a token, only in upper and lower case")
            return self._replace(name, role, grants)

    def ensure(self, name: str, role: Role) -> Token:
        """The token of that name, made when missing."""
        with self._locked():
            present = next((t for t in self.tokens() if t.name == name), None)
            if present is not None and present.role is role:
                return present
            return self._replace(name, role)

    def _replace(self, name: str, role: Role, grants: tuple[Grant, ...] = ()) -> Token:
        secret = secrets.token_urlsafe(32)
        issued_at = self._clock.now().isoformat()
        token = Token(name=name, role=role, secret=secret, issued_at=issued_at, grants=grants)
        self._write([t for t in self.tokens() if t.name != name] + [token])
        return token

    def revoke(self, name: str) -> bool:
        with self._locked():
            tokens = self.tokens()
            self._write([t for t in tokens if t.name != name])
        return any(t.name == name for t in tokens)

    def _reload_when_changed(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._by_digest, self._seen = {}, None
            return
        if (mark := (status.st_mtime_ns, status.st_ino)) == self._seen:
            return
        if status.st_mode & 0o077:
            raise ConfigurationError(
                "readable by others", source=str(self._path), key="mode", remedy=f"chmod 600 {self._path}"
            )
        self._by_digest = {_digest(token.secret): token for token in self._read()}
        self._seen = mark

    def _read(self) -> list[Token]:
        try:
            return [_parse(entry) for entry in json.loads(self._path.read_text(encoding="utf-8"))["tokens"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            # Without a cause: its text would quote the file, and with it a secret.
            raise ConfigurationError(
                "is not a token file",
                source=str(self._path),
                key="tokens",
                remedy="restore it, or remove it and issue the tokens again",
            ) from None

    def _write(self, tokens: list[Token]) -> None:
        temporary = self._path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"tokens": [_entry(token) for token in tokens]}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        self._seen = None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _entry(token: Token) -> dict[str, Any]:
    """A token as it is written; without grants it is what earlier versions wrote and read."""
    entry = asdict(token)
    if not token.grants:
        del entry["grants"]
    return entry


def _parse(entry: dict[str, Any]) -> Token:
    """A token as it was written, by this version or an earlier one."""
    grants = tuple(Grant(**grant | {"senders": tuple(grant["senders"])}) for grant in entry.get("grants", ()))
    return replace(Token(**entry), role=Role(entry["role"]), grants=grants)


def _alike(one: str, other: str) -> bool:
    return one.casefold() == other.casefold()


def _digest(secret: str) -> bytes:
    # Looking up a digest leaks no timing about the secret itself.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
