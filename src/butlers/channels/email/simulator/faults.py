"""Faults that the mail simulators play on request.

A fault waits for its moment (an SMTP phase or an IMAP command), strikes `times` times or until it is removed, and may
wait `seconds` first. The oldest fault that fits strikes; one moment, one fault.

| kind        | SMTP                                        | IMAP                              |
|-------------|---------------------------------------------|-----------------------------------|
| delay       | wait, then go on                            | the same                          |
| reply       | answer `code` `text` instead (451, 550 ...) | --                                |
| no, bad     | --                                          | answer NO or BAD with `text`      |
| drop_before | close without doing it                      | the same                          |
| drop_after  | do it, then close without an answer         | the same                          |
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase

from butlers.errors import FieldError, ValidationError
from butlers.simulators.control import CountedFault, strike

ANY_MOMENT = "*"


class Server(StrEnum):
    SMTP = "smtp"
    IMAP = "imap"


class FaultKind(StrEnum):
    DELAY = "delay"
    REPLY = "reply"
    NO = "no"
    BAD = "bad"
    DROP_BEFORE = "drop_before"
    DROP_AFTER = "drop_after"


SMTP_PHASES = ("connect", "ehlo", "auth", "mail", "rcpt", "data", "dot")
IMAP_COMMANDS = (
    "CONNECT",
    "CAPABILITY",
    "NOOP",
    "LOGOUT",
    "ID",
    "STARTTLS",
    "LOGIN",
    "AUTHENTICATE",
    "SELECT",
    "EXAMINE",
    "CREATE",
    "DELETE",
    "RENAME",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "LIST",
    "LSUB",
    "STATUS",
    "APPEND",
    "CHECK",
    "CLOSE",
    "EXPUNGE",
    "SEARCH",
    "FETCH",
    "STORE",
    "COPY",
    "MOVE",
    "IDLE",
)
_ONLY_FOR = {FaultKind.REPLY: Server.SMTP, FaultKind.NO: Server.IMAP, FaultKind.BAD: Server.IMAP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(CountedFault):
    """One fault and how often it still strikes."""

    server: Server
    moment: str  # an SMTP phase, an IMAP command (FETCH also means UID FETCH), or *
    kind: FaultKind
    seconds: float = 0.0  # wait before striking
    code: int = 451  # SMTP reply code
    text: str = "4.7.1 Greylisted, please try again later"
    recipient: str = ANY_MOMENT  # SMTP rcpt, data and dot only: a pattern such as *@example.org
    id: int = 0  # given by the book


class PendingFaults:
    """The faults that are waiting, oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[int, Fault] = {}
        self._last_id = 0
        self._struck = asyncio.Event()

    def add(self, fault: Fault) -> Fault:
        """Refuses, with every reason at once, a fault that could never strike."""
        problems = tuple(_problems(fault))
        if problems:
            raise ValidationError("this fault could never strike", fields=problems)
        self._last_id += 1
        added = replace(fault, id=self._last_id)
        self._waiting[added.id] = added
        return added

    def waiting(self) -> tuple[Fault, ...]:
        return tuple(self._waiting.values())

    def remove(self, fault_id: int) -> bool:
        return self._waiting.pop(fault_id, None) is not None

    def clear(self, server: Server | None = None) -> None:
        self._waiting = {i: fault for i, fault in self._waiting.items() if server not in (None, fault.server)}

    def take(self, server: Server, moment: str, recipients: Iterable[str] = ()) -> Fault | None:
        """The fault that strikes now, counted as used."""
        addresses = tuple(address.lower() for address in recipients)
        for fault in self._waiting.values():
            if fault.server is server and _fits(fault, moment, addresses):
                self._use(fault)
                return fault
        return None

    async def wait_until_used_up(self, fault_id: int) -> None:
        """Wait until the fault has struck for the last time; the caller sets the deadline."""
        while fault_id in self._waiting:
            await self._struck.wait()

    def _use(self, fault: Fault) -> None:
        self._struck.set()
        self._struck = asyncio.Event()
        strike(self._waiting, fault.id)


def _fits(fault: Fault, moment: str, addresses: tuple[str, ...]) -> bool:
    if fault.moment not in (ANY_MOMENT, moment, moment.removeprefix("UID ")):
        return False
    if fault.recipient == ANY_MOMENT:
        return True
    return any(fnmatchcase(address, fault.recipient.lower()) for address in addresses)


def _problems(fault: Fault) -> Iterable[FieldError]:
    known = SMTP_PHASES if fault.server is Server.SMTP else IMAP_COMMANDS
    if fault.moment != ANY_MOMENT and fault.moment.removeprefix("UID ") not in known:
        name = "phase" if fault.server is Server.SMTP else "command"
        yield FieldError(field=name, error=f"must be one of {', '.join(known)}")
    if _ONLY_FOR.get(fault.kind, fault.server) is not fault.server:
        yield FieldError(field="kind", error=f"{fault.server} has no such fault")
    if fault.kind is FaultKind.DELAY and fault.seconds <= 0:
        yield FieldError(field="seconds", error="a delay needs a positive number of seconds")
    if not fault.text.isascii() or not fault.text.isprintable():
        yield FieldError(field="text", error="must be one line of printable ASCII")
