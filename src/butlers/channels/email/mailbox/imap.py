"""IMAP with the standard library: one short connection per task, in a thread of its own.

A connection per task costs a login and saves every question about what an idle connection may have missed. Each read
from the socket has a time, and so has the task as a whole: when it is over, or the caller is cancelled, the socket is
closed and the thread ends with it. What a server may send has bounds, too: one literal, and all of a task.
"""

from __future__ import annotations

import asyncio
import imaplib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from butlers.channels.email.mailbox.mail_server import LoginRefused, MailServer, NoEncryptionOffered
from butlers.errors import TargetUnavailable

MAX_BYTES = 5 * 1024 * 1024  # of one mail; what is longer is cut
_MAX_ABOUT = 8_000  # bytes of what a server says about one mail beside its content
_LIST_HEADERS = "FROM TO SUBJECT DATE MESSAGE-ID"
_UID = re.compile(rb"\bUID (\d+)")
_SIZE = re.compile(rb"\bRFC822\.SIZE (\d+)")
_FLAGS = re.compile(rb"\bFLAGS \(([^()]*)\)")
_DATE = re.compile(rb'\bINTERNALDATE "([^"]{1,40})"')
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class FolderRefused(Exception):
    """The server does not let us read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    uid: int
    size: int
    seen: bool
    arrived_at: datetime | None
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """What to look for; everything given must hold."""

    text: str | None = None
    sender: str | None = None
    subject: str | None = None
    since: datetime | None = None
    unseen: bool = False
    header: tuple[str, str] | None = None  # name, what its value contains


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    connection: imaplib.IMAP4
    name: str
    uidvalidity: int
    highest_uid: int  # no mail has a higher one yet

    @classmethod
    def open(cls, connection: imaplib.IMAP4, name: str) -> Folder:
        status, _ = connection.select(quoted(name), readonly=True)
        if status != "OK":
            raise FolderRefused(name)
        uidvalidity, uidnext = _number(connection, "UIDVALIDITY"), _number(connection, "UIDNEXT")
        if uidvalidity is None:
            raise FolderRefused(name)  # without it UIDs mean nothing
        highest = uidnext - 1 if uidnext is not None else max(_search(connection, ["ALL"]), default=0)
        return cls(connection=connection, name=name, uidvalidity=uidvalidity, highest_uid=highest)

    def uids(self, criteria: Criteria, *, first: int = 1, last: int | None = None) -> list[int]:
        last = min(self.highest_uid, self.highest_uid if last is None else last)
        if first > last:
            return []
        plain, others = _keys(criteria)
        found = set(_search(self.connection, ["UID", f"{first}:{last}", *plain]))
        for key, value in others:
            # A search takes one literal, which is the only way to say what is not ASCII.
            self.connection.literal = value.encode()  # type: ignore[assignment]
            found &= set(_search(self.connection, ["CHARSET", "UTF-8", *key]))
        return sorted(uid for uid in found if first <= uid <= last)

    def by_message_id(self, message_id: str) -> list[int]:
        return self.uids(Criteria(header=("Message-ID", message_id)))

    def heads(self, uids: Sequence[int]) -> list[Fetched]:
        return self._fetch(uids, f"BODY.PEEK[HEADER.FIELDS ({_LIST_HEADERS})]")

    def mails(self, uids: Sequence[int]) -> list[Fetched]:
        """Whole mails, cut at `MAX_BYTES`, and still unread afterwards."""
        return self._fetch(uids, f"BODY.PEEK[]<0.{MAX_BYTES}>")

    def _fetch(self, uids: Sequence[int], what: str) -> list[Fetched]:
        if not uids:
            return []
        items = f"(UID FLAGS INTERNALDATE RFC822.SIZE {what})"
        status, lines = self.connection.uid("FETCH", ",".join(map(str, uids)), items)
        if status != "OK":
            raise imaplib.IMAP4.error("FETCH")
        requested = set(uids)
        return sorted((mail for mail in _fetched(lines) if mail.uid in requested), key=lambda mail: mail.uid)


def quoted(text: str) -> str:
    """An IMAP quoted string. Callers keep line ends and what is not ASCII out of it."""
    if not text.isascii() or any(c in text for c in "\r\n\x00"):
        raise ValueError("cannot be quoted")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _keys(criteria: Criteria) -> tuple[list[str], list[tuple[list[str], str]]]:
    """Search keys, and those that need a search of their own."""
    plain: list[str] = ["UNSEEN"] if criteria.unseen else []
    if criteria.since is not None:
        # A day early: servers compare days, in a time zone of their own.
        plain += ["SINCE", _day(criteria.since - timedelta(days=1))]
    others: list[tuple[list[str], str]] = []
    for key, value in _texts(criteria):
        if value.isascii():
            plain += [*key, quoted(value)]
        else:
            others.append((key, value))
    return plain, others


def _texts(criteria: Criteria) -> Iterable[tuple[list[str], str]]:
    if criteria.text is not None:
        yield ["TEXT"], criteria.text
    if criteria.sender is not None:
        yield ["FROM"], criteria.sender
    if criteria.subject is not None:
        yield ["SUBJECT"], criteria.subject
    if criteria.header is not None:
        yield ["HEADER", criteria.header[0]], criteria.header[1]


def _day(moment: datetime) -> str:
    day = moment.astimezone(UTC)
    return f"{day.day:02d}-{_MONTHS[day.month - 1]}-{day.year:04d}"


def _search(connection: imaplib.IMAP4, keys: Sequence[str]) -> list[int]:
    status, lines = connection.uid("SEARCH", *keys)
    if status != "OK":
        raise imaplib.IMAP4.error("SEARCH")
    return [int(number) for line in lines if line for number in line.split()]


def _number(connection: imaplib.IMAP4, name: str) -> int | None:
    values: list[Any] = connection.untagged_responses.get(name) or []
    return int(values[-1]) if values else None


def _fetched(lines: Sequence[Any]) -> Iterable[Fetched]:
    """imaplib gives (what stands before a literal, the literal) and, between them, what stands behind."""
    about, raw = b"", b""
    for line in [*lines, None]:
        if isinstance(line, bytes):
            about = about[:_MAX_ABOUT] + b" " + line
            continue
        if (mail := _mail(about, raw)) is not None:
            yield mail
        about, raw = (line[0], line[1]) if isinstance(line, tuple) else (b"", b"")


def _mail(about: bytes, raw: bytes) -> Fetched | None:
    about = about[:_MAX_ABOUT]
    uid, size, flags, date = (pattern.search(about) for pattern in (_UID, _SIZE, _FLAGS, _DATE))
    if uid is None:
        return None
    return Fetched(
        uid=int(uid[1]),
        size=int(size[1]) if size else len(raw),
        seen=flags is not None and b"\\seen" in flags[1].lower(),
        arrived_at=_moment(date[1]) if date else None,
        raw=raw,
    )


def _moment(text: bytes) -> datetime | None:
    try:
        return parsedate_to_datetime(text.decode("ascii").strip().replace("-", " ", 2)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


MAX_LITERAL = MAX_BYTES + 64 * 1024  # bytes of one mail as a server may send it
MAX_RECEIVED = 128 * 1024 * 1024  # bytes of all that a server may send for one task
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImapAccount:
    server: MailServer
    address: str
    password: str
    login: str | None = None  # the address, unless the provider gave another name
    timeout_s: float = 30.0  # of one task
    inbox: str = "INBOX"

    def __repr__(self) -> str:
        return f"ImapAccount({self.address} at {self.server.place})"


class ImapClient:
    def __init__(self, account: ImapAccount) -> None:
        self.account = account
        self._context = account.server.context()

    async def read(self, folder: str, task: Callable[[Folder], T], *, timeout_s: float | None = None) -> T:
        """Do something with a folder, which is opened for reading only."""
        line = _Line()
        try:
            async with asyncio.timeout(timeout_s or self.account.timeout_s):
                return await asyncio.to_thread(self._work, line, folder, task)
        except FolderRefused:
            remedy = "check that the mailbox has this folder (modules.email.inbox)"
            raise TargetUnavailable("the mailbox refuses to be read", retryable=False, remedy=remedy) from None
        except (LoginRefused, NoEncryptionOffered, imaplib.IMAP4.error, OSError, ValueError, IndexError) as error:
            raise self.account.server.fault(error) from error  # also what cannot be parsed
        finally:
            line.cut()

    async def holds(self, folder: str, message_id: str) -> bool:
        return bool(await self.read(folder, lambda opened: opened.by_message_id(message_id)))

    async def probe(self, *, timeout_s: float | None = None) -> None:
        """Log in and open the inbox; raises what is wrong with it."""
        await self.read(self.account.inbox, lambda _: None, timeout_s=timeout_s)

    def _work(self, line: _Line, folder: str, task: Callable[[Folder], T]) -> T:
        connection = self._connected(line)
        _login(connection, self.account)
        result = task(Folder.open(connection, folder))
        connection.logout()
        return result

    def _connected(self, line: _Line) -> imaplib.IMAP4:
        server, timeout_s = self.account.server, self.account.timeout_s
        if server.mode == "implicit":
            return line.take(_BoundedSsl(server.host, server.port, ssl_context=self._context, timeout=timeout_s))
        connection = line.take(_Bounded(server.host, server.port, timeout=timeout_s))
        if server.mode == "starttls":
            if "STARTTLS" not in connection.capabilities:
                raise NoEncryptionOffered
            connection.starttls(self._context)
        return connection


class _Bounded(imaplib.IMAP4):
    """imaplib bounds a line at a million bytes, but believes a server about the length of a literal."""

    received = 0  # bytes, of this connection

    def read(self, size: int) -> bytes:
        if size > MAX_LITERAL:
            raise _too_much(f"announces {size} bytes at once")
        self._count(size)
        return super().read(size)

    def readline(self) -> bytes:
        line = super().readline()
        self._count(len(line))
        return line

    def _count(self, size: int) -> None:
        self.received += size
        if self.received > MAX_RECEIVED:
            raise _too_much(f"sent more than {MAX_RECEIVED} bytes for one task")


class _BoundedSsl(_Bounded, imaplib.IMAP4_SSL):
    """The same over TLS from the first byte on."""


def _too_much(problem: str) -> TargetUnavailable:
    remedy = "check imap_host: a mail server sends no more of a mail than it was asked for"
    return TargetUnavailable(f"the IMAP server {problem}", remedy=remedy)


class _Line:
    """The connection that is in use, so that somebody else may cut it."""

    def __init__(self) -> None:
        self._connection: imaplib.IMAP4 | None = None
        self._cut = False

    def take(self, connection: imaplib.IMAP4) -> imaplib.IMAP4:
        self._connection = connection
        if self._cut:
            self.cut()
        return connection

    def cut(self) -> None:
        self._cut = True
        if self._connection is not None:
            try:
                self._connection.shutdown()
            except OSError:
                return


def _login(connection: imaplib.IMAP4, account: ImapAccount) -> None:
    name = account.login or account.address
    if not name.isascii() or not account.password.isascii():
        raise LoginRefused
    try:
        # imaplib quotes the password only.
        connection.login(quoted(name), account.password)
    except imaplib.IMAP4.abort:
        raise
    except imaplib.IMAP4.error:
        raise LoginRefused from None
