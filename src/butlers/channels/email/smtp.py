"""One SMTP conversation, step by step, so that whoever looks afterwards knows how far it came.

    connect -> ehlo [-> starttls -> ehlo] [-> auth] -> mail -> rcpt -> data -> (the message) -> dot

Until the final dot the server cannot act on anything; after it, only its answer tells. The message goes out by hand
because the client's own `data` is one step, and a connection that is lost before the message leaves is certainly not a
message sent.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import aiosmtplib

from butlers.channels.adapter import Wire
from butlers.channels.email.mailbox.mail_server import MailServer, NoEncryptionOffered
from butlers.channels.email.replies import Reply

GOODBYE_S = 2.0  # nobody waits long for a server's goodbye
_LINE_END = re.compile(rb"\r\n|\r|\n")
_LEADING_DOT = re.compile(rb"(?m)^\.")


class Refused(Exception):
    """The server said no."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.code)
        self.reply = reply


class Conversation:
    """One connection, one mail."""

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
