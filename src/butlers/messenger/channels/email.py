"""Email over SMTP.

The Message-ID and the Date follow from the delivery, so a second attempt is the same mail to every mailbox that looks.
Until the final dot of the message nothing is sent; after it, only the server's answer tells.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from hashlib import sha256

import aiosmtplib

from butlers.errors import ClassifiedError, TargetUnavailable, TimeoutExceeded, ValidationError
from butlers.ids import made_at
from butlers.messenger.channel import AttemptResult, Certainty, NotSent, Outgoing, Sent, Wire
from butlers.serving import is_loopback

IMPLICIT_TLS = 465
_CONTROL = dict.fromkeys((*range(32), 127), " ")


class EmailChannel:
    name = "email"
    identity_scope = "bot"

    def __init__(self, *, host: str, port: int, address: str, password: str) -> None:
        self._host = host
        self._port = port
        self._address = address
        self._password = password

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, wire: Wire) -> AttemptResult:
        try:
            mail = compose(outgoing, sender=self._address)
            raw = mail.as_bytes()
        except ValueError:
            return NotSent(error=ValidationError("the recipient is not a mail address"), answered=True)
        client = self._client(timeout_s)
        left = accepted = False
        try:
            async with client:
                if client.supports_extension("auth"):
                    await client.login(self._address, self._password)
                await client.mail(self._address)
                await client.rcpt(outgoing.target)
                left = True
                wire.leaving()
                await client.data(raw)
                accepted = True
        except (aiosmtplib.SMTPException, OSError) as error:
            if not accepted:  # after the server's yes, a clumsy goodbye changes nothing
                return _judge(error, left)
        return Sent(provider_delivery_id=mail["Message-ID"])

    def _client(self, timeout_s: float) -> aiosmtplib.SMTP:
        """Beyond this machine the password and the mail travel encrypted, or not at all."""
        away = not is_loopback(f"smtp://{self._host}")
        return aiosmtplib.SMTP(
            hostname=self._host,
            port=self._port,
            timeout=timeout_s,
            use_tls=away and self._port == IMPLICIT_TLS,
            start_tls=True if away and self._port != IMPLICIT_TLS else None,
        )

    async def find(self, outgoing: Outgoing) -> bool | None:
        return None

    async def close(self) -> None:
        return


def _judge(error: Exception, left: bool) -> NotSent:
    """What a failed conversation means: the server's own no, or silence."""
    if isinstance(error, aiosmtplib.SMTPRecipientsRefused):
        return NotSent(error=_refusal(error.recipients[0]), answered=True)
    if isinstance(error, aiosmtplib.SMTPResponseException):
        return NotSent(error=_refusal(error), answered=True, response={"code": error.code})
    return NotSent(error=_fault(error), certainty=Certainty.UNCERTAIN if left else Certainty.NOT_SENT)


def compose(outgoing: Outgoing, *, sender: str) -> EmailMessage:
    """The mail; raises ValueError for a recipient that is no address."""
    mail = EmailMessage()
    mail["From"] = _address(sender)
    mail["To"] = _address(outgoing.target)
    mail["Subject"] = (outgoing.subject or "").translate(_CONTROL)
    mail["Date"] = _date(outgoing)
    mail["Message-ID"] = f"<{_digest(outgoing)}@{sender.partition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(outgoing.message)
    return mail


def _address(text: str) -> Address:
    if not text.isascii():
        raise ValueError("beyond what SMTP carries without an extension")
    try:
        return Address(addr_spec=text)
    except (MessageError, IndexError) as error:  # the parser's own ways to say that it is none
        raise ValueError("not an address") from error


def _digest(outgoing: Outgoing) -> str:
    return sha256(outgoing.idempotency_key.encode()).hexdigest()[:40]


def _date(outgoing: Outgoing) -> str:
    moment: datetime = made_at(outgoing.delivery_id).replace(microsecond=0)
    return format_datetime(moment.astimezone(UTC))


def _refusal(error: aiosmtplib.SMTPResponseException) -> ClassifiedError:
    if 400 <= error.code < 500:
        return TargetUnavailable(f"the mail server says not now (code {error.code})")
    if isinstance(error, aiosmtplib.SMTPAuthenticationError):
        return TargetUnavailable(f"the mail server refuses the login (code {error.code})", retryable=False)
    return ValidationError(f"the mail server refuses the mail (code {error.code})")


def _fault(error: Exception) -> ClassifiedError:
    if isinstance(error, aiosmtplib.SMTPTimeoutError | TimeoutError):
        return TimeoutExceeded("the mail server gave no answer in time")
    return TargetUnavailable(f"the mail server is unreachable ({type(error).__name__})")
