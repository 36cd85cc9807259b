"""The email channel against the mail simulator: what is said, what is certain, and what the Sent folder knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import httpx2
import pytest

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Outgoing, Sent
from butlers.channels.email.adapter import EmailChannel
from butlers.channels.email.mailbox.imap import ImapAccount, ImapClient
from butlers.channels.email.mailbox.mail_server import MailServer
from butlers.channels.email.message import message_id
from butlers.channels.email.simulator import MailSimulator, serve_mail
from butlers.channels.email.simulator.faults import FaultKind, MailFault, Server
from butlers.clock import ManualClock, SystemClock
from butlers.errors import ClassifiedError, ConfigurationError, TargetUnavailable
from butlers.ids import Uuid7Factory
from tests.integration.simulators.mail_state import ACCOUNTS, BUTLER, OWNER, fault
from tests.integration.simulators.mail_support import controlling

PASSWORD = ACCOUNTS[BUTLER]


@dataclass(slots=True)
class RecordingWire:
    """A wire that remembers when the message left."""

    left: list[int] = field(default_factory=list)

    def leaving(self, part: int = 1) -> None:
        self.left.append(part)

    async def part_sent(self, part: int, provider_delivery_id: str) -> None:
        raise AssertionError("a mail has one part")


@pytest.fixture
async def mail() -> AsyncIterator[MailSimulator]:
    async with serve_mail("127.0.0.1", 0, 0, None, clock=SystemClock(), accounts=ACCOUNTS) as running:
        yield running


@pytest.fixture
async def control(mail: MailSimulator) -> AsyncIterator[httpx2.AsyncClient]:
    async with controlling(mail) as client:
        yield client


def channel(mail: MailSimulator, **more: Any) -> EmailChannel:
    port = more.pop("port", mail.smtp_port)
    server = MailServer(protocol="smtp", host=more.pop("host", mail.host), port=port, **_encryption(more))
    given: dict[str, Any] = {"server": server, "address": BUTLER, "password": PASSWORD}
    return EmailChannel(**given | more)


def _encryption(given: dict[str, Any]) -> dict[str, Any]:
    """What is said about encryption, taken out; the simulator does without unless something is said."""
    return {"tls": given.pop("tls", "auto" if "tls_ca" in given else "none"), "tls_ca": given.pop("tls_ca", None)}


def mailbox(mail: MailSimulator, **more: Any) -> ImapClient:
    server = MailServer(protocol="imap", host=mail.host, port=mail.imap_port, **_encryption(more))
    given: dict[str, Any] = {"server": server, "address": BUTLER, "password": PASSWORD, "timeout_s": 5.0}
    return ImapClient(ImapAccount(**given | more))


def outgoing(**fields: Any) -> Outgoing:
    usual: dict[str, Any] = {"intent": "send", "target": OWNER, "message": "hello", "subject": "[health] News"}
    usual |= {"delivery_id": Uuid7Factory(ManualClock())(), "idempotency_key": "key"}
    return Outgoing(**usual | fields)


async def attempt(
    mail: MailSimulator, message: Outgoing, timeout_s: float = 5.0, **more: Any
) -> tuple[AttemptResult, RecordingWire]:
    wire = RecordingWire()
    result = await channel(mail, **more).attempt(message, timeout_s=timeout_s, wire=wire)
    return result, wire


def failed(result: AttemptResult) -> NotSent:
    assert isinstance(result, NotSent), result
    return result


async def test_a_mail_is_accepted_and_the_answer_is_evidence(mail: MailSimulator) -> None:
    result, wire = await attempt(mail, outgoing(message=".\n..dots"))
    assert isinstance(result, Sent)
    (accepted,) = mail.store.accepted
    assert (accepted.envelope_from, accepted.recipients[0].address) == (BUTLER, OWNER)
    assert f"Message-ID: {result.provider_delivery_id}\r\n".encode() in accepted.raw
    assert accepted.raw.endswith(b"\r\n\r\n.\r\n..dots\r\n")
    assert result.response == {"phase": "dot", "code": 250, "enhanced": "2.0.0"}
    assert wire.left == [1]


@pytest.mark.parametrize("kind", [FaultKind.DROP_AFTER, FaultKind.DROP_BEFORE])
async def test_a_lost_answer_is_uncertain_and_the_sent_folder_knows(mail: MailSimulator, kind: FaultKind) -> None:
    message = outgoing()
    mail.faults.add(fault("dot", kind))
    result, wire = await attempt(mail, message)
    assert (failed(result).certainty, failed(result).answered, wire.left) == (Certainty.UNCERTAIN, False, [1])
    assert failed(result).response == {"phase": "dot", "code": None, "enhanced": None}
    asked = channel(mail, imap=mailbox(mail), sent_folder="Sent")
    arrived = message_id("key", sender=BUTLER) if kind is FaultKind.DROP_AFTER else None
    assert await asked.find(message) == arrived


async def test_a_resend_after_a_lost_answer_is_the_same_bytes(mail: MailSimulator) -> None:
    event = {"message_id": "<parent@far.example>", "references": "<root@far.example>"}
    message = outgoing(intent="reply", message="Grüße\n" * 50, subject="[health] Größe", source_event=event)
    mail.faults.add(fault("dot", FaultKind.DROP_AFTER))
    await attempt(mail, message)
    result, _ = await attempt(mail, message)
    assert isinstance(result, Sent)
    first, second = mail.store.accepted
    assert first.raw == second.raw
    assert b"In-Reply-To: <parent@far.example>\r\n" in first.raw


@pytest.mark.parametrize("phase", ["connect", "ehlo", "mail", "rcpt", "data"])
async def test_a_connection_lost_before_the_message_left_is_certainly_not_sent(mail: MailSimulator, phase: str) -> None:
    mail.faults.add(fault(phase, FaultKind.DROP_BEFORE))
    result, wire = await attempt(mail, outgoing())
    assert (failed(result).certainty, failed(result).error.retryable, wire.left) == (Certainty.NOT_SENT, True, [])
    assert failed(result).response["phase"] == phase
    assert mail.store.accepted == ()


@pytest.mark.parametrize(
    ("phase", "code", "text", "error_class", "retryable", "gone"),
    [
        ("rcpt", 450, "4.7.1 Greylisted", "target_unavailable", True, False),
        ("dot", 451, "4.3.0 later", "target_unavailable", True, False),
        ("rcpt", 550, "5.1.1 nobody", "validation_error", False, True),
        ("data", 554, "5.7.1 policy", "validation_error", False, False),
        ("dot", 552, "5.3.4 too big", "validation_error", False, False),
        ("auth", 535, "5.7.8 no", "target_unavailable", False, False),
        ("connect", 421, "4.3.2 closing", "target_unavailable", True, False),
    ],
)
async def test_a_refusal_is_certain(  # noqa: PLR0917 - a table
    mail: MailSimulator, phase: str, code: int, text: str, error_class: str, retryable: bool, gone: bool
) -> None:
    mail.faults.add(fault(phase, FaultKind.REPLY, code=code, text=text, times=None))
    result = failed((await attempt(mail, outgoing()))[0])
    assert (result.error.error_class, result.error.retryable, result.recipient_gone) == (error_class, retryable, gone)
    assert (result.certainty, result.answered) == (Certainty.NOT_SENT, True)
    assert result.response == {"phase": phase, "code": code, "enhanced": text.split(maxsplit=1)[0]}
    assert (result.throttle is not None) == (code == 421)
    assert mail.store.accepted == ()


async def test_a_wrong_password_is_the_channels_fault(mail: MailSimulator) -> None:
    result = failed((await attempt(mail, outgoing(), password="wrong"))[0])
    assert (result.error.error_class, result.error.retryable) == ("target_unavailable", False)
    assert result.response["phase"] == "auth"


@pytest.mark.parametrize(("phase", "certainty"), [("mail", Certainty.NOT_SENT), ("dot", Certainty.UNCERTAIN)])
async def test_an_attempt_ends_when_its_time_is_over(mail: MailSimulator, phase: str, certainty: Certainty) -> None:
    mail.faults.add(fault(phase, FaultKind.DELAY, seconds=60.0))
    result = failed((await attempt(mail, outgoing(), timeout_s=0.3))[0])
    assert (result.error.error_class, result.certainty) == ("timeout", certainty)


async def test_nobody_listens(mail: MailSimulator) -> None:
    probe = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = probe.sockets[0].getsockname()[1]
    probe.close()
    result = failed((await attempt(mail, outgoing(), port=port))[0])
    assert (result.error.error_class, result.error.retryable) == ("target_unavailable", True)
    assert result.certainty is Certainty.NOT_SENT


# --- the Sent folder -------------------------------------------------------------------------------------------------


async def test_the_sent_folder_cannot_always_be_asked(mail: MailSimulator) -> None:
    message = outgoing()
    await attempt(mail, outgoing(idempotency_key="another"))
    assert await channel(mail).find(message) is None
    assert await channel(mail, imap=mailbox(mail)).find(message) is None
    assert await channel(mail, imap=mailbox(mail), sent_folder="No such folder").find(message) is None
    assert await channel(mail, imap=mailbox(mail, password="wrong"), sent_folder="Sent").find(message) is None
    for kind in (FaultKind.DROP_BEFORE, FaultKind.NO, FaultKind.BAD):
        added = mail.faults.add(_imap("SEARCH", kind))
        assert await channel(mail, imap=mailbox(mail), sent_folder="Sent").find(message) is None
        assert added.id not in {waiting.id for waiting in mail.faults.waiting()}
    assert await channel(mail, imap=mailbox(mail), sent_folder="Sent").find(message) is None
    await attempt(mail, message)
    assert await channel(mail, imap=mailbox(mail), sent_folder="Sent").find(message) == message_id("key", sender=BUTLER)


async def test_a_mailbox_that_does_not_answer_is_not_waited_for(mail: MailSimulator) -> None:
    await attempt(mail, outgoing())
    mail.faults.add(_imap("SEARCH", FaultKind.DELAY, seconds=60.0))
    slow = mailbox(mail, timeout_s=0.3)
    assert await channel(mail, imap=slow, sent_folder="Sent").find(outgoing()) is None


def _imap(command: str, kind: FaultKind, **more: Any) -> MailFault:
    return MailFault(server=Server.IMAP, moment=command, kind=kind, **more)


# --- encryption ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def encrypted() -> AsyncIterator[MailSimulator]:
    async with serve_mail(
        "127.0.0.1", 0, 0, None, clock=SystemClock(), accounts=ACCOUNTS, starttls=True, require_auth=True
    ) as running:
        yield running


@pytest.fixture
def ca(encrypted: MailSimulator, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    path.write_text(encrypted.certificate_pem or "", encoding="ascii")
    return path


async def test_with_a_trusted_authority_mail_and_mailbox_are_encrypted(encrypted: MailSimulator, ca: Path) -> None:
    message = outgoing()
    result, _ = await attempt(encrypted, message, tls_ca=ca)
    assert isinstance(result, Sent)  # the server takes a login only when the line is encrypted
    asked = channel(encrypted, tls_ca=ca, imap=mailbox(encrypted, tls_ca=ca), sent_folder="Sent")
    assert await asked.find(message) == message_id("key", sender=BUTLER)


async def test_an_authority_that_is_configured_is_insisted_on(mail: MailSimulator, ca: Path) -> None:
    """The server offers no encryption at all: nothing travels in clear."""
    result = failed((await attempt(mail, outgoing(), tls_ca=ca))[0])
    assert (result.error.error_class, result.error.retryable) == ("target_unavailable", False)
    assert result.certainty is Certainty.NOT_SENT
    assert await channel(mail, imap=mailbox(mail, tls_ca=ca), sent_folder="Sent").find(outgoing()) is None
    assert mail.store.accepted == ()


async def test_another_authority_is_not_believed(encrypted: MailSimulator, tmp_path: Path) -> None:
    async with serve_mail(
        "127.0.0.1", 0, 0, None, clock=SystemClock(), accounts=ACCOUNTS, starttls=True
    ) as somebody_else:
        path = tmp_path / "other.pem"
        path.write_text(somebody_else.certificate_pem or "", encoding="ascii")
    result = failed((await attempt(encrypted, outgoing(), tls_ca=path))[0])
    assert (result.error.error_class, result.error.retryable) == ("target_unavailable", False)
    assert encrypted.store.accepted == ()


@pytest.mark.parametrize(("implicit", "tls"), [(True, "implicit"), (False, "starttls"), (False, "auto")])
async def test_a_self_made_certificate_is_refused_with_the_setting_that_trusts_it(implicit: bool, tls: str) -> None:
    """Not even on this machine is it answered with plain text: the password stays at home."""
    async with serving(starttls=not implicit, implicit_tls=implicit) as self_made:
        sending = failed((await attempt(self_made, outgoing(), tls=tls))[0]).error
        with pytest.raises(TargetUnavailable) as reading:
            await mailbox(self_made, tls=tls).probe()
        assert self_made.store.accepted == ()
    for error in (sending, reading.value):
        assert "certificate that is not trusted (it is self-signed)" in error.message
        assert "mail_tls_ca" in error.remedy
        assert not error.retryable


@pytest.mark.parametrize(("implicit", "tls"), [(True, "implicit"), (False, "starttls"), (False, "auto")])
async def test_each_mode_carries_mail_and_reads_the_mailbox_on_any_port(
    tmp_path: Path, implicit: bool, tls: str
) -> None:
    async with serving(starttls=not implicit, implicit_tls=implicit, require_auth=True) as encrypted:
        path = tmp_path / "ca.pem"
        path.write_text(encrypted.certificate_pem or "", encoding="ascii")
        message = outgoing()
        result, _ = await attempt(encrypted, message, tls=tls, tls_ca=path)
        assert isinstance(result, Sent)
        reader = mailbox(encrypted, tls=tls, tls_ca=path)
        asked = channel(encrypted, tls=tls, tls_ca=path, imap=reader, sent_folder="Sent")
        assert await asked.find(message) == message_id("key", sender=BUTLER)


async def test_a_server_without_encryption_is_refused_unless_none_is_set(mail: MailSimulator) -> None:
    error = failed((await attempt(mail, outgoing(), tls="starttls"))[0]).error
    assert "offers no STARTTLS" in error.message
    assert "smtp_tls=none" in error.remedy
    with pytest.raises(TargetUnavailable, match="offers no STARTTLS") as reading:
        await mailbox(mail, tls="starttls").probe()
    assert "imap_tls=none" in reading.value.remedy
    assert mail.store.accepted == ()
    assert isinstance((await attempt(mail, outgoing(), tls="none"))[0], Sent)


async def test_the_wrong_mode_is_named_with_the_right_one(mail: MailSimulator) -> None:
    """TLS from the first byte to a server that greets in plain text, and a wait for a greeting that needs TLS."""
    error = failed((await attempt(mail, outgoing(), tls="implicit"))[0]).error
    assert "cannot agree with us on encryption" in error.message
    assert "smtp_tls=starttls" in error.remedy
    async with serving(implicit_tls=True) as implicit:
        waiting = failed((await attempt(implicit, outgoing(), tls="starttls", timeout_s=0.5))[0]).error
        assert "smtp_tls=implicit" in waiting.remedy
        with pytest.raises(ClassifiedError) as reading:
            await mailbox(implicit, tls="starttls", timeout_s=0.5).probe()
        assert "imap_tls=implicit" in reading.value.remedy


async def test_a_host_that_nobody_knows_is_named(mail: MailSimulator) -> None:
    error = failed((await attempt(mail, outgoing(), host="no-such-host.invalid"))[0]).error
    assert "no-such-host.invalid" in error.message
    assert "smtp_host" in error.remedy


async def test_the_login_name_and_the_shown_name_can_differ_from_the_address() -> None:
    accounts = ACCOUNTS | {"account-7@login.example": "secret-7"}
    async with serve_mail("127.0.0.1", 0, 0, None, clock=SystemClock(), accounts=accounts, require_auth=True) as server:
        names: dict[str, Any] = {"login": "account-7@login.example", "password": "secret-7"}
        result, _ = await attempt(server, outgoing(), from_name="Ada’s butler", **names)
        assert isinstance(result, Sent)
        assert not isinstance((await attempt(server, outgoing(), password="secret-7"))[0], Sent)
        await mailbox(server, **names).probe()
        (accepted,) = server.store.accepted
        shown = message_from_bytes(accepted.raw, policy=policy.default)["From"].addresses[0]
        assert (shown.display_name, shown.addr_spec) == ("Ada’s butler", BUTLER)


async def test_a_probe_logs_in_and_sends_nothing(mail: MailSimulator) -> None:
    await channel(mail).probe(timeout_s=5.0)
    with pytest.raises(TargetUnavailable, match="refuses the login") as refusal:
        await channel(mail, password="wrong-word").probe(timeout_s=5.0)
    assert "mail_login" in refusal.value.remedy
    assert "wrong-word" not in refusal.value.message + refusal.value.remedy
    with pytest.raises(TargetUnavailable, match="refuses the login"):
        await mailbox(mail, password="wrong-word").probe()
    assert mail.store.accepted == ()


def serving(**more: Any) -> AbstractAsyncContextManager[MailSimulator]:
    return serve_mail("127.0.0.1", 0, 0, None, clock=SystemClock(), accounts=ACCOUNTS, **more)


def test_an_authority_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    for content in (None, "not a certificate"):
        path = tmp_path / "ca.pem"
        if content is not None:
            path.write_text(content, encoding="ascii")
        with pytest.raises(ConfigurationError, match="mail_tls_ca"):
            MailServer(protocol="smtp", host="127.0.0.1", port=25, tls_ca=path).context()
