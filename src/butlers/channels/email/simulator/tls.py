"""A certificate for one run: made at start, kept in memory, trusted only by whoever is handed its PEM."""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_VALID_FOR = timedelta(days=30)
_CLOCK_SKEW = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
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
    return ServerIdentity(context=_context(pem + secret), certificate_pem=pem.decode())


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
