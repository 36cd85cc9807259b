"""Email over SMTP, with a look into the Sent folder when an answer was lost.

A second attempt is the same mail, byte for byte (`message`), so a lost answer may be met by sending again; what
the server's replies mean and how far an attempt came is in `smtp`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import aiosmtplib

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Outgoing, Sent, Wire
from butlers.channels.email.mailbox.imap import ImapAccount, ImapClient
from butlers.channels.email.mailbox.mail_server import LoginRefused, MailServer, NoEncryptionOffered
from butlers.channels.email.message import compose, message_id
from butlers.channels.email.smtp import Conversation, Refused, refused
from butlers.channels.plugins import ChannelSettings
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError, ValidationError
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger.email")

PERMANENT = 500  # replies from here on mean no, not later
# A time that is over is an OSError, too.
_UNANSWERED = (aiosmtplib.SMTPException, OSError, NoEncryptionOffered)


def make_adapter(settings: ChannelSettings) -> EmailChannel:
    """The factory that the channel's value names. The settings' names are the bot's: the owner's own account logs in
    with its address.
    """
    options, is_bot = settings.options, settings.identity_scope == "bot"
    return EmailChannel(
        server=_server("smtp", options),
        address=settings.secrets["address"],
        password=settings.secrets["password"],
        login=(options["smtp_login"] or options["mail_login"]) if is_bot else None,
        from_name=options["mail_from_name"] if is_bot else None,
        identity_scope=settings.identity_scope,
        imap=make_mailbox(settings),
        sent_folder=options["sent_folder"],
    )


def make_mailbox(settings: ChannelSettings) -> ImapClient | None:
    """The mailbox of one identity scope, where there is a server to read it from."""
    options = settings.options
    if options["imap_host"] is None:
        return None
    return ImapClient(
        ImapAccount(
            server=_server("imap", options),
            address=settings.secrets["address"],
            password=settings.secrets["password"],
            login=options["mail_login"] if settings.identity_scope == "bot" else None,
            inbox=options["inbox"],
        )
    )


def _server(protocol: Literal["smtp", "imap"], options: Mapping[str, Any]) -> MailServer:
    return MailServer(
        protocol=protocol,
        host=options[f"{protocol}_host"],
        port=options[f"{protocol}_port"],
        tls=options[f"{protocol}_tls"],
        tls_ca=options["mail_tls_ca"],
    )


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
            return NotSent(
                error=self._server.fault(error),
                certainty=Certainty.UNCERTAIN if conversation.left else Certainty.NOT_SENT,
                response={"phase": conversation.phase, "code": None, "enhanced": None},
            )
        finally:
            conversation.close()
        return Sent(provider_delivery_id=str(mail["Message-ID"]), response=reply.evidence())

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
            login_refused = refusal.reply.phase == "auth" and refusal.reply.code >= PERMANENT
            error = self._server.fault(LoginRefused()) if login_refused else refused(refusal.reply).error
            raise error from refusal
        except _UNANSWERED as error:
            raise self._server.fault(error) from error
        finally:
            conversation.close()

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
