"""Email over SMTP, with a look into the Sent folder when an answer was lost.

A second attempt is the same mail, byte for byte (`email_message`), so a lost answer may be met by sending again; what
the server's replies mean is in `email_replies`, how far an attempt came in `email_smtp`.
"""

from __future__ import annotations

import asyncio

import aiosmtplib

from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError, ValidationError
from butlers.messenger.channel import AttemptResult, Certainty, NotSent, Outgoing, Sent, Wire
from butlers.messenger.channels.email_message import compose, message_id
from butlers.messenger.channels.email_replies import Reply, refused
from butlers.messenger.channels.email_smtp import Conversation, Refused
from butlers.messenger.mailbox.imap import ImapClient
from butlers.messenger.mailbox.mail_server import LoginRefused, MailServer, NoEncryptionOffered
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger.email")

PERMANENT = 500  # replies from here on mean no, not later
# A time that is over is an OSError, too.
_UNANSWERED = (aiosmtplib.SMTPException, OSError, NoEncryptionOffered)


class EmailChannel:
    name = "email"
    resumes = False

    def __init__(
        self,
        *,
        server: MailServer,
        address: str,
        password: str,
        login: str | None = None,  # the address, unless the provider gave another name
        from_name: str | None = None,  # shown beside the address
        identity_scope: str = "bot",
        imap: ImapClient | None = None,
        sent_folder: str | None = None,  # where the provider files what it accepted from us
    ) -> None:
        self.identity_scope = identity_scope
        self._server = server
        self._address = address
        self._password = password
        self._login = login or address
        self._from_name = from_name
        self._context = server.context()
        self._imap = imap
        self._sent_folder = sent_folder

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, wire: Wire) -> AttemptResult:
        try:
            mail = compose(outgoing, sender=self._address, sender_name=self._from_name)
        except ValueError:
            return NotSent(error=ValidationError("the recipient is not a mail address"), answered=True)
        conversation = self._conversation(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await conversation.greet()
                await conversation.login(self._login, self._password)
                reply = await conversation.send(
                    mail.as_bytes(), sender=self._address, recipient=outgoing.as_given, wire=wire
                )
            await conversation.quit()
        except Refused as refusal:
            await conversation.quit()
            return refused(refusal.reply)
        except _UNANSWERED as error:
            return _unanswered(self._server.fault(error), conversation)
        finally:
            conversation.close()
        return _sent(reply, mail["Message-ID"])

    def _conversation(self, timeout_s: float) -> Conversation:
        return Conversation(server=self._server, context=self._context, timeout_s=timeout_s)

    async def probe(self, *, timeout_s: float) -> None:
        """Greet the server and log in, and say goodbye before any mail."""
        conversation = self._conversation(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await conversation.greet()
                await conversation.login(self._login, self._password)
            await conversation.quit()
        except Refused as refusal:
            await conversation.quit()
            raise self._refusal(refusal) from refusal
        except _UNANSWERED as error:
            raise self._server.fault(error) from error
        finally:
            conversation.close()

    def _refusal(self, refusal: Refused) -> ClassifiedError:
        if refusal.reply.phase == "auth" and refusal.reply.code >= PERMANENT:
            return self._server.fault(LoginRefused())
        return refused(refusal.reply).error

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
            log.warning("the Sent folder cannot be read", error=error, error_class=error.error_class)
            return None
        return identifier if held else None

    async def close(self) -> None:
        return


def _sent(reply: Reply, identifier: str) -> Sent:
    return Sent(provider_delivery_id=str(identifier), response=reply.evidence())


def _unanswered(error: ClassifiedError, conversation: Conversation) -> NotSent:
    return NotSent(
        error=error,
        certainty=Certainty.UNCERTAIN if conversation.left else Certainty.NOT_SENT,
        response={"phase": conversation.phase, "code": None, "enhanced": None},
    )
