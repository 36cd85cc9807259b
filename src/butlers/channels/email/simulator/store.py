"""The mail that the SMTP and the IMAP simulator share.

    SMTP  --accept-->   transcript (raw exactly as sent)  +  copies in local mailboxes
    control --deliver-> INBOX                                     ^
    IMAP  <--read, flag, append, expunge--------------------------+

Every change is one journal record, and a change happens only by applying its record:

    method  ->  record  ->  journal  ->  apply          while running
                            journal  ->  apply          at start

so what a restart rebuilds is what was there, UIDs included. UIDVALIDITY values never repeat: each is the time it was
given out, or one more than the last when the clock does not move.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from email.utils import format_datetime
from typing import Any

from butlers.clock import Clock
from butlers.simulators.journal import Journal

INBOX = "INBOX"
SENT = "Sent"


def canonical(address: str) -> str:
    """Addresses are compared without regard to case, as every large provider does."""
    return address.strip().lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
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


Record = dict[str, Any]


class MailStore:
    """Mailboxes and the SMTP transcript, durable when the journal is."""

    def __init__(self, *, clock: Clock, addresses: Iterable[str] = (), journal: Journal | None = None) -> None:
        self.clock = clock
        self._addresses = tuple(canonical(address) for address in addresses)
        self._journal = journal or Journal()
        self._last_uidvalidity = 0
        self._mailboxes: dict[str, dict[str, Mailbox]] = {}
        self._accepted: list[AcceptedMail] = []
        self._listeners: list[Callable[[], None]] = []
        self._changed = asyncio.Event()
        self._journal.replay(self._apply)
        self._open_standard_mailboxes()

    # Reading

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self._mailboxes)

    @property
    def accepted(self) -> tuple[AcceptedMail, ...]:
        return tuple(self._accepted)

    def is_local(self, address: str) -> bool:
        return canonical(address) in self._mailboxes

    def mailboxes(self, address: str) -> Mapping[str, Mailbox]:
        """The folders of an account by name; KeyError when there is no such account."""
        return self._mailboxes[canonical(address)]

    def mailbox(self, address: str, name: str = INBOX) -> Mailbox:
        """KeyError when there is no such account or folder."""
        return self.mailboxes(address)[folder_name(name)]

    def holds(self, mailbox: Mailbox) -> bool:
        """Whether this very folder is still there; a deleted one may have a namesake."""
        return self._mailboxes.get(mailbox.address, {}).get(mailbox.name) is mailbox

    def messages(self, address: str, name: str = INBOX) -> tuple[StoredMessage, ...]:
        return tuple(self.mailbox(address, name).messages.values())

    async def wait_until(self, condition: Callable[[MailStore], bool]) -> None:
        """Wait for a change that makes the condition true; the caller sets the deadline."""
        while not condition(self):
            await self._changed.wait()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    # Changing

    def accept(
        self, *, envelope_from: str, recipients: Iterable[RecipientResult], raw: bytes, copy_to_sent: bool
    ) -> AcceptedMail:
        """Take responsibility for a message: durable when this returns."""
        results = tuple(recipients)
        now = self.clock.now()
        self._commit(
            op="accepted",
            at=now.isoformat(),
            envelope_from=envelope_from,
            recipients=[asdict(result) for result in results],
            copies=self._copies(envelope_from, results, now, copy_to_sent),
            raw=b64encode(raw).decode(),
        )
        return self._accepted[-1]

    def append(
        self,
        address: str,
        name: str,
        raw: bytes,
        *,
        flags: Iterable[str] = (),
        internal_date: datetime | None = None,
    ) -> StoredMessage:
        """Put a message into a folder, as IMAP APPEND does."""
        mailbox = self.mailbox(address, name)
        at = (internal_date or self.clock.now()).isoformat()
        self._change("appended", mailbox, at=at, flags=sorted(flags), raw=b64encode(raw).decode())
        return mailbox.messages[mailbox.uidnext - 1]

    def deliver(self, address: str, raw: bytes, *, envelope_from: str) -> StoredMessage:
        """Bring mail from the outside world to an INBOX, with the trace headers a delivery adds."""
        trace = trace_headers(envelope_from=envelope_from, recipient=canonical(address), now=self.clock.now())
        return self.append(address, INBOX, trace + raw)

    def set_flags(self, address: str, name: str, uid: int, flags: Iterable[str]) -> StoredMessage:
        mailbox = self.mailbox(address, name)
        self._change("flagged", mailbox, uid=uid, flags=sorted(flags))
        return mailbox.messages[uid]

    def expunge(self, address: str, name: str, uids: Iterable[int]) -> None:
        mailbox = self.mailbox(address, name)
        present = [uid for uid in uids if uid in mailbox.messages]
        if present:
            self._change("expunged", mailbox, uids=present)

    def create_mailbox(self, address: str, name: str) -> None:
        """ValueError when it is there already."""
        if folder_name(name) in self.mailboxes(address):
            raise ValueError(name)
        self._open(canonical(address), folder_name(name))

    def delete_mailbox(self, address: str, name: str) -> None:
        self._change("deleted", self.mailbox(address, name))

    def renew_uidvalidity(self, address: str, name: str = INBOX) -> int:
        """Make every UID that a client remembers worthless."""
        mailbox = self.mailbox(address, name)
        self._change("renumbered", mailbox, uidvalidity=self._next_uidvalidity())
        return mailbox.uidvalidity

    def reset(self) -> None:
        """Empty mailboxes, empty transcript."""
        self._commit(op="reset")
        self._open_standard_mailboxes()

    # Records

    def _change(self, op: str, mailbox: Mailbox, **more: Any) -> None:
        self._commit(op=op, address=mailbox.address, mailbox=mailbox.name, **more)

    def _commit(self, **record: Any) -> None:
        self._journal.append(record)
        self._apply(record)
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in tuple(self._listeners):
            listener()

    def _apply(self, record: Record) -> None:
        getattr(self, f"_apply_{record['op']}")(record)

    def _apply_opened(self, record: Record) -> None:
        address, name = record["address"], record["mailbox"]
        self._last_uidvalidity = max(self._last_uidvalidity, record["uidvalidity"])
        self._mailboxes.setdefault(address, {})[name] = Mailbox(
            address=address, name=name, uidvalidity=record["uidvalidity"]
        )

    def _apply_accepted(self, record: Record) -> None:
        raw, at = b64decode(record["raw"]), datetime.fromisoformat(record["at"])
        self._accepted.append(
            AcceptedMail(
                number=len(self._accepted) + 1,
                at=at,
                envelope_from=record["envelope_from"],
                recipients=tuple(RecipientResult(**result) for result in record["recipients"]),
                raw=raw,
            )
        )
        for copy in record["copies"]:
            mailbox = self._touched(copy)
            mailbox.add(at=at, flags=copy["flags"], raw=b64decode(copy["trace"]) + raw)

    def _apply_appended(self, record: Record) -> None:
        at = datetime.fromisoformat(record["at"])
        self._touched(record).add(at=at, flags=record["flags"], raw=b64decode(record["raw"]))

    def _apply_flagged(self, record: Record) -> None:
        messages, uid = self._touched(record).messages, record["uid"]
        messages[uid] = replace(messages[uid], flags=frozenset(record["flags"]))

    def _apply_expunged(self, record: Record) -> None:
        messages = self._touched(record).messages
        for uid in record["uids"]:
            del messages[uid]

    def _apply_renumbered(self, record: Record) -> None:
        self._last_uidvalidity = max(self._last_uidvalidity, record["uidvalidity"])
        self._touched(record).renumber(record["uidvalidity"])

    def _apply_deleted(self, record: Record) -> None:
        del self._mailboxes[record["address"]][record["mailbox"]]

    def _apply_reset(self, record: Record) -> None:
        self._accepted.clear()
        self._mailboxes.clear()

    def _touched(self, record: Record) -> Mailbox:
        mailbox = self._mailboxes[record["address"]][record["mailbox"]]
        mailbox.revision += 1
        return mailbox

    def _copies(
        self, envelope_from: str, results: tuple[RecipientResult, ...], now: datetime, copy_to_sent: bool
    ) -> list[Record]:
        reached = dict.fromkeys(canonical(r.address) for r in results if r.accepted)
        copies = [
            _copy(address, INBOX, trace_headers(envelope_from=envelope_from, recipient=address, now=now))
            for address in reached
            if address in self._mailboxes
        ]
        sender = canonical(envelope_from)
        if copy_to_sent and SENT in self._mailboxes.get(sender, {}):
            copies.append(_copy(sender, SENT, b"", flags=("\\Seen",)))
        return copies

    def _open_standard_mailboxes(self) -> None:
        for address in self._addresses:
            for name in (INBOX, SENT):
                if name not in self._mailboxes.get(address, {}):
                    self._open(address, name)

    def _open(self, address: str, name: str) -> None:
        self._commit(op="opened", address=address, mailbox=name, uidvalidity=self._next_uidvalidity())

    def _next_uidvalidity(self) -> int:
        return max(self._last_uidvalidity + 1, int(self.clock.now().timestamp()))


def _copy(address: str, name: str, trace: bytes, *, flags: tuple[str, ...] = ()) -> Record:
    return {"address": address, "mailbox": name, "flags": list(flags), "trace": b64encode(trace).decode()}


def trace_headers(*, envelope_from: str, recipient: str, now: datetime) -> bytes:
    """What a mail server puts above a message that it delivers."""
    lines = (
        f"Return-Path: <{envelope_from}>",
        f"Delivered-To: {recipient}",
        f"Received: by mail.simulator.invalid for <{recipient}>; {format_datetime(now)}",
    )
    return "".join(f"{line}\r\n" for line in lines).encode("utf-8", "replace")
