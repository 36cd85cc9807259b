"""Email over SMTP, with a look into the Sent folder when an answer was lost.

A second attempt is the same mail, byte for byte (`email_message`), so a lost answer may be met by sending again; what
the server's replies mean is in `email_replies`, how far an attempt came in `email_smtp`.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiosmtplib

from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError, TargetUnavailable, TimeoutExceeded, ValidationError
from butlers.messenger.channel import AttemptResult, Certainty, NotSent, Outgoing, Sent, Wire
from butlers.messenger.channels.email_message import compose, message_id
from butlers.messenger.channels.email_replies import Reply, refused
from butlers.messenger.channels.email_smtp import Conversation, Refused
from butlers.messenger.mailbox.encryption import Encryption
from butlers.messenger.mailbox.imap import ImapClient
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger.email")


class EmailChannel:
    name = "email"
    resumes = False

    def __init__(
        self,
        *,
        host: str,
        port: int,
        address: str,
        password: str,
        identity_scope: str = "bot",
        tls_ca: Path | None = None,
        imap: ImapClient | None = None,
        sent_folder: str | None = None,  # where the provider files what it accepted from us
    ) -> None:
        self.identity_scope = identity_scope
        self._host = host
        self._port = port
        self._address = address
        self._password = password
        self._encryption = Encryption(host=host, tls_ca=tls_ca)
        self._context = self._encryption.context()
        self._imap = imap
        self._sent_folder = sent_folder

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, wire: Wire) -> AttemptResult:
        try:
            mail = compose(outgoing, sender=self._address)
        except ValueError:
            return NotSent(error=ValidationError("the recipient is not a mail address"), answered=True)
        conversation = self._conversation(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await conversation.greet()
                await conversation.login(self._address, self._password)
                reply = await conversation.send(
                    mail.as_bytes(), sender=self._address, recipient=outgoing.as_given, wire=wire
                )
            await conversation.quit()
        except Refused as refusal:
            await conversation.quit()
            return refused(refusal.reply)
        except (aiosmtplib.SMTPException, OSError) as error:  # a time that is over is an OSError, too
            return _unanswered(error, conversation)
        finally:
            conversation.close()
        return _sent(reply, mail["Message-ID"])

    def _conversation(self, timeout_s: float) -> Conversation:
        return Conversation(
            host=self._host,
            port=self._port,
            timeout_s=timeout_s,
            encryption=self._encryption,
            context=self._context,
        )

    def problem(self, outgoing: Outgoing) -> ValidationError | None:
        try:
            compose(outgoing, sender=self._address)
        except ValueError:
            return invalid("delivery.recipient", "is not a mail address")
        return None

    async def find(self, outgoing: Outgoing) -> str | None:
        """The Message-ID, when a mail with it lies in the Sent folder."""
        if self._imap is None or self._sent_folder is None:
            return None
        identifier = message_id(outgoing.idempotency_key, sender=self._address)
        try:
            held = await self._imap.holds(self._sent_folder, identifier)
        except ClassifiedError as error:
            log.warning("the Sent folder cannot be read", error_class=error.error_class)
            return None
        return identifier if held else None

    async def close(self) -> None:
        return


def _sent(reply: Reply, identifier: str) -> Sent:
    return Sent(provider_delivery_id=str(identifier), response=reply.evidence())


def _unanswered(error: Exception, conversation: Conversation) -> NotSent:
    return NotSent(
        error=_fault(error),
        certainty=Certainty.UNCERTAIN if conversation.left else Certainty.NOT_SENT,
        response={"phase": conversation.phase, "code": None, "enhanced": None},
    )


def _fault(error: Exception) -> ClassifiedError:
    if isinstance(error, TimeoutError):
        return TimeoutExceeded("the mail server gave no answer in time")
    if isinstance(error, ssl.SSLCertVerificationError):
        return TargetUnavailable("the mail server's certificate is not trusted", retryable=False)
    if type(error) in (aiosmtplib.SMTPException, aiosmtplib.SMTPNotSupported):  # no encryption or login that both know
        return TargetUnavailable("the mail server lacks what we require of it", retryable=False)
    return TargetUnavailable(f"the mail server is unreachable ({type(error).__name__})")
