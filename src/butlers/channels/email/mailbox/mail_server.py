"""One mail server: where it is, how its connections are encrypted, and what a failed connection means.

    implicit   TLS from the first byte                    ports 465 and 993, unless told otherwise
    starttls   a plain greeting, then TLS, or no mail     every other port, unless told otherwise
    none       no encryption                              only when `smtp_tls` or `imap_tls` says so

Nothing here falls back to plain text: a server that offers no encryption, or whose certificate is not trusted, is
refused with the setting that would change that. Passwords and mail travel in clear only when the operator says `none`.

The texts of a server and of the TLS library never reach an error: they may quote names and addresses.
"""

from __future__ import annotations

import errno
import imaplib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import aiosmtplib

from butlers.errors import ClassifiedError, ConfigurationError, TargetUnavailable, TimeoutExceeded
from butlers.http_client import authorities_and

TlsMode = Literal["starttls", "implicit", "none"]
IMPLICIT_TLS_PORTS = frozenset({465, 993})


class LoginRefused(Exception):
    """The server does not take this login name with this password."""


class NoEncryptionOffered(Exception):
    """The server speaks, and does not know STARTTLS."""


class Finding(NamedTuple):
    problem: str
    remedy: str
    lasting: bool = True  # no later attempt helps before somebody changes something


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    protocol: Literal["smtp", "imap"]
    host: str
    port: int
    tls: TlsMode | Literal["auto"] = "auto"  # auto: by the port
    tls_ca: Path | None = None  # certificates to believe beside the machine's own

    @property
    def mode(self) -> TlsMode:
        if self.tls != "auto":
            return self.tls
        return "implicit" if self.port in IMPLICIT_TLS_PORTS else "starttls"

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def tls_setting(self) -> str:
        return f"{self.protocol}_tls"

    def context(self) -> ssl.SSLContext:
        """Whom connections to this server believe."""
        try:
            return authorities_and(self.tls_ca.read_text() if self.tls_ca else "")
        except (OSError, ValueError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"no certificates can be read ({type(error).__name__})",
                source=str(self.tls_ca),
                key="mail_tls_ca",
                remedy="name a PEM file with the certificate authority of the mail server",
            ) from error

    def fault(self, error: BaseException) -> ClassifiedError:
        if isinstance(error, ClassifiedError):
            return error
        found = self._find(error)
        problem = f"the {self.protocol.upper()} server {self.place} {found.problem}"
        if any(isinstance(cause, TimeoutError | aiosmtplib.SMTPTimeoutError) for cause in _causes(error)):
            return TimeoutExceeded(problem, remedy=found.remedy)
        return TargetUnavailable(problem, retryable=not found.lasting, remedy=found.remedy)

    def _find(self, error: BaseException) -> Finding:
        for cause in _causes(error):
            if (found := self._of_encryption(cause) or self._of_network(cause)) is not None:
                return found
        return Finding(f"ends the connection ({type(error).__name__})", self._elsewhere(), lasting=False)

    def _of_encryption(self, error: BaseException) -> Finding | None:
        setting = self.tls_setting
        if isinstance(error, ssl.SSLCertVerificationError):
            return Finding(
                f"shows a certificate that is not trusted ({_why_not_trusted(error)})",
                "set mail_tls_ca to a PEM file with the authority that signed it, or correct the host's name",
            )
        if isinstance(error, ssl.SSLError):
            return Finding(
                f"cannot agree with us on encryption ({error.reason or type(error).__name__})",
                f"set {setting}={'starttls' if self.mode == 'implicit' else 'implicit'}, or correct the port",
            )
        if isinstance(error, NoEncryptionOffered):
            return Finding(
                "offers no STARTTLS, and a password is not sent in clear",
                f"set {setting}=implicit if its port encrypts from the first byte, or {setting}=none to send in clear",
            )
        if isinstance(error, aiosmtplib.SMTPNotSupported) or type(error) is aiosmtplib.SMTPException:
            return Finding("knows no way to log in that we know", "ask its operator for PLAIN or LOGIN")
        if isinstance(error, LoginRefused):
            return Finding(
                "refuses the login",
                "correct the password (BUTLER_EMAIL_PASSWORD) and the login name (mail_login; unset: the address)",
            )
        return None

    def _of_network(self, error: BaseException) -> Finding | None:
        if isinstance(error, socket.gaierror):
            return Finding("has a name that nobody knows", f"correct {self.protocol}_host", lasting=False)
        if isinstance(error, ConnectionRefusedError) or getattr(error, "errno", None) == errno.ECONNREFUSED:
            return Finding("is not there: nothing listens at that port", self._elsewhere(), lasting=False)
        if isinstance(error, TimeoutError | aiosmtplib.SMTPTimeoutError):
            other = "" if self.mode == "implicit" else f"; a port that waits for TLS wants {self.tls_setting}=implicit"
            return Finding("gave no answer in time", self._elsewhere() + other, lasting=False)
        if isinstance(error, imaplib.IMAP4.abort | aiosmtplib.SMTPServerDisconnected):
            return Finding("hung up", self._elsewhere(), lasting=False)
        return None

    def _elsewhere(self) -> str:
        return f"check {self.protocol}_host and {self.protocol}_port"


def _why_not_trusted(error: ssl.SSLCertVerificationError) -> str:
    """OpenSSL's fixed word for it; its whole sentence would quote names."""
    known = {10: "it has expired", 18: "it is self-signed", 19: "a self-signed authority", 20: "an unknown authority"}
    known |= {9: "it is not valid yet", 62: "it is for another host", 64: "it is for another address"}
    return known.get(error.verify_code, f"code {error.verify_code}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from: clients wrap what the socket said."""
    seen = 0
    while error is not None and seen < 5:
        yield error
        error, seen = error.__cause__ or error.__context__, seen + 1
