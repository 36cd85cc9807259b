"""The address that was checked is the address that is called, with TLS for the name."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from butlers.clock import SystemClock
from butlers.webhooks.addresses import AddressGuard, SystemResolver
from butlers.webhooks.deliveries import Answer, Target
from butlers.webhooks.sender import WebhookSender
from tests.integration.webhooks.receiver import Receiver, receiver
from tests.integration.webhooks.sending import SECRET

DELIVERY = UUID(int=7)


class Rebinding:
    """A name server that changes its answers, as attackers' do."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, _host: str, _port: int) -> Sequence[str]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def send(resolve, url: str, *, allowed: bool, verify: ssl.SSLContext | None = None) -> Answer:
    sender = WebhookSender(
        guard=AddressGuard(resolve=resolve, private_allowed=allowed), clock=SystemClock(), timeout_s=10, verify=verify
    )
    try:
        return await sender.send(DELIVERY, Target(endpoint_id=DELIVERY, url=url, secrets=(SECRET,)), {"type": "x"})
    finally:
        await sender.close()


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["::ffff:127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"]]
)
async def test_a_name_that_leads_here_is_refused_and_nothing_is_sent(hooks: Receiver, addresses):
    answer = await send(Rebinding(addresses), f"http://hooks.example:{hooks.port}/", allowed=False)
    assert answer.status is None
    assert "leads to a private network" in (answer.error or "")
    assert hooks.received == []


async def test_metadata_is_refused_also_where_private_networks_are_allowed(hooks: Receiver):
    answer = await send(Rebinding(["169.254.169.254"]), "http://metadata.example/", allowed=True)
    assert "never called" in (answer.error or "")


async def test_a_name_that_changes_after_the_check_gains_nothing(hooks: Receiver):
    """The first answer is checked and used; a second one, which would lead to metadata, is never asked for."""
    names = Rebinding(["127.0.0.1"], ["169.254.169.254"])
    answer = await send(names, f"http://hooks.example:{hooks.port}/", allowed=True)
    assert answer.status == 204
    assert names.asked == 1
    assert hooks.received[0].headers["host"] == f"hooks.example:{hooks.port}"


async def test_a_name_that_was_public_when_the_endpoint_was_made_is_checked_again(hooks: Receiver):
    names = Rebinding(["8.8.8.8"], ["127.0.0.1"])
    guard = AddressGuard(resolve=names, private_allowed=False)
    assert await guard.addresses("hooks.example", 443) == ["8.8.8.8"]
    answer = await send(names, f"http://hooks.example:{hooks.port}/", allowed=False)
    assert "leads to a private network" in (answer.error or "")
    assert hooks.received == []


@pytest.mark.parametrize("host", ["2130706433", "0177.0.0.1", "0x7f000001", "127.1", "localhost"])
async def test_every_spelling_that_the_operating_system_reads_is_checked_as_what_it_is(hooks: Receiver, host: str):
    """Also if such a host came past the check of the address."""
    resolver = SystemResolver()
    answer = await send(resolver, f"http://{host}:{hooks.port}/", allowed=False)
    resolver.close()
    assert answer.status is None
    assert hooks.received == []


async def test_the_second_address_is_tried_when_the_first_does_not_answer(hooks: Receiver):
    answer = await send(Rebinding(["127.0.0.2", "127.0.0.1"]), f"http://hooks.example:{hooks.port}/", allowed=True)
    assert answer.status == 204


async def test_a_name_without_an_address_is_an_answer_of_its_own():
    answer = await send(Rebinding([]), "https://nowhere.example/", allowed=False)
    assert answer.error == "the receiver cannot be reached (ConnectError)"


async def test_no_proxy_of_the_environment_is_used(hooks: Receiver, monkeypatch: pytest.MonkeyPatch):
    async with receiver() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.port}")
        answer = await send(Rebinding(["127.0.0.1"]), f"http://hooks.example:{hooks.port}/", allowed=True)
        assert answer.status == 204
        assert proxy.received == []


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of a server with this name and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    signed = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / f"{name}.pem"
    path.write_bytes(private + signed)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, ssl.create_default_context(cadata=signed.decode())


async def test_tls_is_checked_for_the_name_at_the_checked_address(tmp_path: Path):
    server, client = certificate(tmp_path, "hooks.example")
    async with receiver(tls=server) as hooks:
        names = Rebinding(["127.0.0.1"])
        right = await send(names, f"https://hooks.example:{hooks.port}/", allowed=True, verify=client)
        wrong = await send(names, f"https://other.example:{hooks.port}/", allowed=True, verify=client)
    assert right.status == 204
    assert wrong.error == "the receiver cannot be reached (ConnectError)"
    assert len(hooks.received) == 1
