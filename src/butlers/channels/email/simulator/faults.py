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

from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatchcase

from pydantic import Field

from butlers.errors import FieldError, ValidationError
from butlers.simulators.engine import Fault, Faults

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
    *("CONNECT", "CAPABILITY", "NOOP", "LOGOUT", "ID", "STARTTLS", "LOGIN", "AUTHENTICATE", "SELECT", "EXAMINE"),
    *("CREATE", "DELETE", "RENAME", "SUBSCRIBE", "UNSUBSCRIBE", "LIST", "LSUB", "STATUS", "APPEND", "CHECK", "CLOSE"),
    *("EXPUNGE", "SEARCH", "FETCH", "STORE", "COPY", "MOVE", "IDLE"),
)
_ONLY_FOR = {FaultKind.REPLY: Server.SMTP, FaultKind.NO: Server.IMAP, FaultKind.BAD: Server.IMAP}


class MailFault(Fault):
    id: int = 0
    server: Server = Field(strict=False)
    moment: str  # an SMTP phase, an IMAP command (FETCH also means UID FETCH), or *
    kind: FaultKind = Field(strict=False)
    seconds: float = Field(default=0.0, ge=0, le=3600)  # wait before striking
    code: int = Field(default=451, ge=400, le=599)  # SMTP reply code
    text: str = Field(default="4.7.1 Greylisted, please try again later", max_length=400)
    recipient: str = ANY_MOMENT  # SMTP rcpt, data and dot only: a pattern such as *@example.org

    def hits(self, server: Server, moment: str, addresses: tuple[str, ...]) -> bool:
        if self.server is not server or self.moment not in (ANY_MOMENT, moment, moment.removeprefix("UID ")):
            return False
        pattern = self.recipient.lower()
        return pattern == ANY_MOMENT or any(fnmatchcase(address, pattern) for address in addresses)


class PendingFaults(Faults[MailFault]):
    def __init__(self) -> None:
        super().__init__(MailFault)

    def add(self, fault: MailFault) -> MailFault:
        """Refuses, with every reason at once, a fault that could never strike."""
        if problems := tuple(_problems(fault)):
            raise ValidationError("this fault could never strike", fields=problems)
        return super().add(fault)

    def take_at(self, server: Server, moment: str, recipients: Iterable[str] = ()) -> MailFault | None:
        addresses = tuple(address.lower() for address in recipients)
        struck = self.take(lambda fault: fault.hits(server, moment, addresses), only_oldest=True)
        return struck[0] if struck else None


def _problems(fault: MailFault) -> Iterable[FieldError]:
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
