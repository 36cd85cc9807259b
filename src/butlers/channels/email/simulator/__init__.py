"""A simulated mail world: SMTP in, IMAP out, one store between them, a control API, and faults on request.

    async with serve_mail("127.0.0.1", 0, 0, 0, clock=clock, accounts={"butler@example.org": "secret"}) as mail:
        ... mail.smtp_port, mail.imap_port, mail.control_url, mail.store, mail.faults

Give no control port to mount `mail.control_routes()` in an application of your own, such as the Telegram simulator's
(`extra_routes`). When the block ends, what was received is answered before anybody is hung up on.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from starlette.applications import Starlette
from starlette.routing import Route

from butlers.channels.email.simulator.control import MailControl
from butlers.channels.email.simulator.faults import PendingFaults
from butlers.channels.email.simulator.imap import ImapServer
from butlers.channels.email.simulator.smtp import SmtpServer, SmtpSettings
from butlers.channels.email.simulator.store import MailStore, canonical
from butlers.clock import Clock, SystemClock
from butlers.simulators.engine import Pauses, listen_as, serving
from butlers.simulators.journal import Journal

_VALID_FOR = timedelta(days=30)
_CLOCK_SKEW = timedelta(days=1)


class ServerIdentity(NamedTuple):
    """What a server shows, and what a client needs to believe it."""

    context: ssl.SSLContext
    certificate_pem: str


def self_signed(host: str, *, now: datetime) -> ServerIdentity:
    """A fresh key and a certificate for the host, for `localhost` and for the loopback addresses."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(key, host, now)
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return ServerIdentity(_context(pem + secret), pem.decode())


def _certificate(key: ec.EllipticCurvePrivateKey, host: str, now: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "butlers mail simulator")])
    names = dict.fromkeys((host, "localhost", "127.0.0.1", "::1"))
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(n) for n in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _context(pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # The ssl module reads keys from files only; the directory is private and gone at once.
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "identity.pem"
        path.touch(mode=0o600)
        path.write_bytes(pem)
        context.load_cert_chain(path)
    return context


@dataclass(frozen=True, slots=True, kw_only=True)
class MailSimulator:
    host: str
    smtp_port: int
    imap_port: int
    control_port: int | None
    store: MailStore
    faults: PendingFaults
    certificate_pem: str | None  # what a client must trust when the connection is encrypted

    @property
    def control_url(self) -> str:
        return f"http://{self.host}:{self.control_port}/control/mail"

    def control_routes(self) -> list[Route]:
        return MailControl(self.store, self.faults).routes()


@asynccontextmanager
async def serve_mail(
    host: str,
    smtp_port: int,
    imap_port: int,
    control_port: int | None,
    *,
    clock: Clock,
    accounts: Mapping[str, str],
    journal_path: Path | None = None,
    starttls: bool = False,
    implicit_tls: bool = False,  # from the first byte, as on ports 465 and 993; instead of STARTTLS
    require_auth: bool = False,
    size_limit: int = 10 * 1024 * 1024,
    copy_to_sent: bool = True,
) -> AsyncIterator[MailSimulator]:
    """Run the simulators; port 0 takes a free one. `accounts` maps each local address to its password."""
    passwords = {canonical(address): password for address, password in accounts.items()}
    # Clients check certificates against the machine's clock, whatever clock the mail runs on.
    encrypted = starttls or implicit_tls
    context, certificate_pem = self_signed(host, now=SystemClock().now()) if encrypted else (None, None)
    tls_context, at_once = (None, context) if implicit_tls else (context, None)
    settings = SmtpSettings(
        size_limit=size_limit,
        passwords=passwords,
        require_auth=require_auth,
        tls_context=tls_context,
        copy_to_sent=copy_to_sent,
    )
    faults = PendingFaults()
    async with AsyncExitStack() as stack:
        journal = Journal(journal_path)
        stack.callback(journal.close)
        store = MailStore(clock=clock, addresses=passwords, journal=journal)
        pauses = Pauses(clock)
        smtp = SmtpServer(store=store, faults=faults, pauses=pauses, settings=settings)
        imap = ImapServer(store=store, faults=faults, pauses=pauses, passwords=passwords, tls_context=tls_context)
        stack.push_async_callback(smtp.stop)
        stack.push_async_callback(imap.stop)
        stack.callback(pauses.close)
        bound = await smtp.start(host, smtp_port, tls=at_once), await imap.start(host, imap_port, tls=at_once)
        if control_port is not None:
            listener = stack.enter_context(listen_as("mail simulator's control API", host, control_port))
            app = Starlette(routes=MailControl(store, faults).routes())
            control_port = await stack.enter_async_context(serving(app, listener))
        yield MailSimulator(
            host=host,
            smtp_port=bound[0],
            imap_port=bound[1],
            control_port=control_port,
            store=store,
            faults=faults,
            certificate_pem=certificate_pem,
        )
