"""When a mail connection is encrypted, and whom it believes.

Beyond this machine passwords and mail travel encrypted and verified, or not at all. On this machine encryption is
required as soon as somebody named a certificate authority for it; without one it is used where the server's
certificate is trusted, and done without where it is not (the self-made certificate of a local mail server).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from butlers.errors import ConfigurationError
from butlers.serving import is_loopback
from butlers.trust import authorities_and


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    host: str
    tls_ca: Path | None = None  # certificates to believe beside the machine's own

    @property
    def required(self) -> bool:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.tls_ca is not None or not is_loopback(f"//{host}")

    def context(self) -> ssl.SSLContext:
        try:
            return authorities_and(self.tls_ca.read_text() if self.tls_ca else "")
        except (OSError, ValueError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"no certificates can be read ({type(error).__name__})",
                source=str(self.tls_ca),
                key="mail_tls_ca",
                remedy="name a PEM file with the certificate authority of the mail server",
            ) from error
