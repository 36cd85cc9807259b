"""The bodies of the control API, checked field by field."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from butlers.channels.email.simulator.faults import Fault, FaultKind, Server
from butlers.channels.email.simulator.mailbox import INBOX
from butlers.simulators.control import Body, invalid

_ADDRESS = r"^[^\s@<>\x00-\x1f]+@[^\s@<>\x00-\x1f]+$"

Address = Annotated[str, Field(pattern=_ADDRESS, max_length=320)]


class MessageBody(Body):
    """A plain message from outside."""

    sender: Address = Field(alias="from")
    to: Address | list[Address] = Field(min_length=1)
    subject: str = ""
    text: str
    message_id: str | None = Field(default=None, pattern=r"^<[^<>\s]+>$")
    in_reply_to: str | None = Field(default=None, pattern=r"^<[^<>\s]+>$")
    headers: dict[str, str] = Field(default_factory=dict)

    @property
    def recipients(self) -> tuple[str, ...]:
        return (self.to,) if isinstance(self.to, str) else tuple(self.to)


class FaultBody(Body):
    """A fault; `phase` is for SMTP, `command` for IMAP."""

    server: Server = Field(strict=False)
    phase: str | None = None
    command: str | None = None
    kind: FaultKind = Field(strict=False)
    times: int | None = Field(default=1, ge=1)  # null: until removed
    seconds: float = Field(default=0.0, ge=0, le=3600)
    code: int = Field(default=451, ge=400, le=599)
    text: str | None = Field(default=None, max_length=400)
    recipient: str = "*"

    def fault(self) -> Fault:
        smtp = self.server is Server.SMTP
        moment = self.phase if smtp else self.command
        if moment is None or (self.command if smtp else self.phase) is not None:
            wanted, unwanted = ("phase", "command") if smtp else ("command", "phase")
            raise invalid(wanted, f"{self.server} faults have a {wanted} and no {unwanted}")
        return Fault(
            server=self.server,
            moment=moment.lower() if smtp else moment.upper(),
            kind=self.kind,
            times=self.times,
            seconds=self.seconds,
            code=self.code,
            text=_default_text(self.code) if self.text is None else self.text,
            recipient=self.recipient,
        )


class ReportBody(Body):
    """What a mail server says became of a mail that it had accepted."""

    action: Literal["failed", "delayed", "delivered", "relayed", "expanded"] = "failed"
    status: str = Field(default="5.1.1", pattern=r"^[245]\.\d{1,3}\.\d{1,3}$")
    recipient: Address | None = None  # default: the first one it was accepted for
    diagnostic: str = Field(default="no such user", max_length=200, pattern=r"^[ -~]*$")
    whole: bool = True  # false: only the head of the mail comes back


class UidvalidityBody(Body):
    address: str
    mailbox: str = INBOX


def _default_text(code: int) -> str:
    return "4.7.1 Greylisted, please try again later" if code < 500 else "5.1.1 Mailbox unavailable"
