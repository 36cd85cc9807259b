"""An open folder: what its mails are called, and their content, within bounds.

UIDs are worth something only together with the folder's UIDVALIDITY. `UID n:*` names the last mail even when n lies
beyond it, so ranges here always end at a known number: the UIDNEXT that the server told when the folder was opened.
"""

from __future__ import annotations

import imaplib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

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
    """One mail, or its head, as the server gave it."""

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
        """The matching mails in a range of UIDs, ascending."""
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
        wanted = set(uids)
        return sorted((mail for mail in _fetched(lines) if mail.uid in wanted), key=lambda mail: mail.uid)


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
