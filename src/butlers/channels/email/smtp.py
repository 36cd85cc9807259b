"""One SMTP conversation, step by step, so that whoever looks afterwards knows how far it came.

    connect -> ehlo [-> starttls -> ehlo] [-> auth] -> mail -> rcpt -> data -> (the message) -> dot

Until the final dot the server cannot act on anything; after it, only its answer tells. The message goes out by hand
because the client's own `data` is one step, and a connection that is lost before the message leaves is certainly not a
message sent.

What a mail server's reply means for a delivery.

| reply                                    | delivery                                                              |
|------------------------------------------|-----------------------------------------------------------------------|
| 421, or "too many" and the like          | not now, and nobody else either: the channel is throttled             |
| other 4xx (greylisting, mailbox busy)    | not now; the retry schedule of email waits it out                     |
| 530, 534, 535, 538, 5xx to the login     | our account is at fault: no retry helps                               |
| 5xx to the greeting or to EHLO           | the server will not have us: the same                                 |
| 550, 551, 553 to RCPT, 5.1.x anywhere    | the recipient is no more                                              |
| other 5xx                                | this message is refused                                               |

A refusal of policy (5.7.x) or for lack of room (5.2.2, 5.2.3) says nothing about whether the address exists, and a
refusal of MAIL is about us. The server's own words stay out of every record: they may quote the message.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiosmtplib

from butlers.channels.adapter import NotSent, Throttle, Wire
from butlers.channels.email.mailbox.mail_server import MailServer, NoEncryptionOffered
from butlers.errors import ClassifiedError, TargetUnavailable, ValidationError

GOODBYE_S = 2.0  # nobody waits long for a server's goodbye
_LINE_END = re.compile(rb"\r\n|\r|\n")
_LEADING_DOT = re.compile(rb"(?m)^\.")


class Refused(Exception):
    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.code)
        self.reply = reply


class Conversation:
    def __init__(self, *, server: MailServer, context: ssl.SSLContext, timeout_s: float) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._client = aiosmtplib.SMTP(
            hostname=server.host,
            port=server.port,
            timeout=timeout_s,
            use_tls=server.mode == "implicit",
            start_tls=False,
            tls_context=context,
        )
        self.phase = "connect"
        self.left = False  # the message is under way

    async def greet(self) -> None:
        """Connect, and encrypt as the server's mode says."""
        await self._step("connect", self._client.connect())
        await self._hello()
        if self._server.mode != "starttls":
            return
        self.phase = "starttls"
        if not self._client.supports_extension("starttls"):
            raise NoEncryptionOffered
        await self._step("starttls", self._client.starttls())
        await self._hello()

    async def login(self, user: str, password: str) -> None:
        if self._client.supports_extension("auth"):
            await self._step("auth", self._client.login(user, password))

    async def send(self, raw: bytes, *, sender: str, recipient: str, wire: Wire) -> Reply:
        """Hand the mail over; the server's yes."""
        await self._step("mail", self._client.mail(sender))
        await self._step("rcpt", self._client.rcpt(recipient))
        self.phase = "data"
        go = await self._client.execute_command(b"DATA")
        if go.code != aiosmtplib.SMTPStatus.start_input:
            raise Refused(Reply(phase="data", code=go.code, text=go.message))
        return await self._message(raw, wire)

    async def _message(self, raw: bytes, wire: Wire) -> Reply:
        protocol = self._client.protocol
        if protocol is None or not protocol.is_connected:
            raise aiosmtplib.SMTPServerDisconnected("before the message")
        self.phase, self.left = "dot", True
        wire.leaving()
        protocol.write(framed(raw))
        answer = await protocol.read_response(timeout=self._timeout_s)
        reply = Reply(phase="dot", code=answer.code, text=answer.message)
        if answer.code != aiosmtplib.SMTPStatus.completed:
            raise Refused(reply)
        return reply

    async def quit(self) -> None:
        """After the server's answer a clumsy goodbye changes nothing."""
        with suppress(aiosmtplib.SMTPException, OSError):
            await self._client.quit(timeout=GOODBYE_S)
        self.close()

    def close(self) -> None:
        self._client.close()

    async def _hello(self) -> None:
        try:
            await self._step("ehlo", self._client.ehlo())
        except Refused as refused:
            if refused.reply.code < 500:
                raise
            await self._step("ehlo", self._client.helo())  # a server from before 1995

    async def _step(self, phase: str, step: Awaitable[Any]) -> None:
        self.phase = phase
        try:
            await step
        except aiosmtplib.SMTPRecipientsRefused as error:
            first = error.recipients[0]
            raise Refused(Reply(phase=phase, code=first.code, text=first.message)) from error
        except aiosmtplib.SMTPResponseException as error:
            raise Refused(Reply(phase=phase, code=error.code, text=error.message)) from error


def framed(raw: bytes) -> bytes:
    """The message as it stands on the wire: CRLF line ends, leading dots doubled, the final dot."""
    lines = _LINE_END.sub(b"\r\n", raw)
    if not lines.endswith(b"\r\n"):
        lines += b"\r\n"
    return _LEADING_DOT.sub(b"..", lines) + b".\r\n"


THROTTLE_S = 60.0
_ENHANCED = re.compile(r"([245])\.(\d{1,3})\.(\d{1,3})\b")
_BUSY = re.compile(r"too many|rate limit|throttl|too quickly|too fast", re.IGNORECASE)
_ACCOUNT = frozenset({530, 534, 535, 538})
_NO_SUCH_RECIPIENT = frozenset({550, 551, 553})
_BEFORE_THE_MAIL = frozenset({"connect", "ehlo", "starttls"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    phase: str  # connect | ehlo | starttls | auth | mail | rcpt | data | dot
    code: int
    text: str

    @property
    def enhanced(self) -> str | None:
        found = _ENHANCED.match(self.text.strip())
        return found[0] if found and found[1] == str(self.code)[:1] else None

    def evidence(self) -> dict[str, Any]:
        return {"phase": self.phase, "code": self.code, "enhanced": self.enhanced}


def refused(reply: Reply) -> NotSent:
    """The server answered, and the answer was no: certainly not sent."""
    return NotSent(
        error=_error(reply),
        answered=True,
        response=reply.evidence(),
        throttle=_throttle(reply),
        recipient_gone=_recipient_gone(reply),
    )


def _error(reply: Reply) -> ClassifiedError:
    status = f"{reply.code} {reply.enhanced or ''}".strip()
    if 400 <= reply.code < 500:
        throttle = _throttle(reply)
        return TargetUnavailable(
            f"the mail server says not now ({status})", retry_after=throttle.seconds if throttle else None
        )
    if reply.phase == "auth" or reply.code in _ACCOUNT:
        return TargetUnavailable(f"the mail server refuses the login ({status})", retryable=False)
    if reply.phase in _BEFORE_THE_MAIL or not 500 <= reply.code < 600:
        return TargetUnavailable(f"the mail server refuses us ({status})", retryable=False)
    if _recipient_gone(reply):
        return ValidationError(f"the mail server knows no such recipient ({status})")
    return ValidationError(f"the mail server refuses the mail ({status})")


def _throttle(reply: Reply) -> Throttle | None:
    passing = 400 <= reply.code < 500
    if passing and (reply.code == 421 or _BUSY.search(reply.text)):
        return Throttle(scope="channel", seconds=THROTTLE_S)
    return None


def _recipient_gone(reply: Reply) -> bool:
    if not 500 <= reply.code < 600 or reply.phase not in ("rcpt", "data", "dot"):
        return False
    enhanced = reply.enhanced
    if enhanced is None:
        return reply.phase == "rcpt" and reply.code in _NO_SUCH_RECIPIENT
    subject, detail = enhanced.split(".")[1:]
    unknown = subject == "0" and reply.phase == "rcpt" and reply.code in _NO_SUCH_RECIPIENT
    return subject == "1" or (subject == "2" and detail == "1") or unknown
