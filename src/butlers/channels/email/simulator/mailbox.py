"""What the mail store keeps: folders with messages, and what SMTP accepted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

INBOX = "INBOX"
SENT = "Sent"


def canonical(address: str) -> str:
    """Addresses are compared without regard to case, as every large provider does."""
    return address.strip().lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """One message in one mailbox."""

    uid: int
    internal_date: datetime  # when it arrived, or what APPEND said
    flags: frozenset[str]  # such as \\Seen; never \\Recent, which belongs to a session
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientResult:
    """What the SMTP server answered to one RCPT."""

    address: str
    code: int
    text: str

    @property
    def accepted(self) -> bool:
        return self.code < 300


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedMail:
    """One message that the SMTP server took responsibility for."""

    number: int  # from 1, in order of acceptance
    at: datetime
    envelope_from: str  # "" is the null return path
    recipients: tuple[RecipientResult, ...]  # refused ones too
    raw: bytes  # exactly what came before the final dot


@dataclass(slots=True, kw_only=True)
class Mailbox:
    """One folder of one account; only the store changes it."""

    address: str
    name: str
    uidvalidity: int
    uidnext: int = 1
    revision: int = 0  # grows with every change
    messages: dict[int, StoredMessage] = field(default_factory=dict)  # by UID, ascending

    def add(self, *, at: datetime, flags: Iterable[str], raw: bytes) -> None:
        self.messages[self.uidnext] = StoredMessage(uid=self.uidnext, internal_date=at, flags=frozenset(flags), raw=raw)
        self.uidnext += 1

    def renumber(self, uidvalidity: int) -> None:
        """What a server does that lost its index: the same messages, counted anew."""
        messages = list(self.messages.values())
        self.uidvalidity, self.uidnext, self.messages = uidvalidity, 1, {}
        for message in messages:
            self.add(at=message.internal_date, flags=message.flags, raw=message.raw)


def folder_name(name: str) -> str:
    """INBOX is the one folder whose name has no case."""
    return INBOX if name.upper() == INBOX else name
