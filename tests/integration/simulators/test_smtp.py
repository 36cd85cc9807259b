"""The SMTP simulator, seen by clients that know nothing of it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import smtplib
import ssl
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiosmtplib
import httpx2
import pytest
import uvloop

from butlers.channels.email.simulator import MailSimulator, serve_mail
from butlers.channels.email.simulator.faults import FaultKind, PendingFaults
from butlers.channels.email.simulator.smtp import SmtpServer, SmtpSettings
from butlers.channels.email.simulator.store import MailStore
from butlers.clock import ManualClock, SystemClock
from butlers.simulators.engine import Pauses
from butlers.simulators.journal import Journal
from tests.integration.simulators.mail_state import (
    ACCOUNTS,
    BUTLER,
    OWNER,
    STRANGER,
    connect,
    control,
    fault,
    letter,
    mail,
    send,
)
from tests.integration.simulators.mail_support import DEADLINE, blocking, poke

__all__ = ["control", "mail"]  # fixtures


async def test_a_message_is_accepted_delivered_and_filed_in_sent(
    mail: MailSimulator, control: httpx2.AsyncClient
) -> None:
    assert await blocking(lambda: send(mail, OWNER, STRANGER)) == {}

    (accepted,) = (await control.get("/accepted")).json()["accepted"]
    assert (accepted["from"], accepted["subject"], accepted["text"]) == (BUTLER, "News", "good morning")
    assert accepted["message_id"] == "<one@home.example>"
    assert [(r["address"], r["code"]) for r in accepted["recipients"]] == [(OWNER, 250), (STRANGER, 250)]
    assert (await control.get("/accepted/1/raw")).content == letter()

    (delivered,) = mail.store.messages(OWNER)
    assert delivered.raw.startswith(f"Return-Path: <{BUTLER}>\r\n".encode())
    assert delivered.raw.endswith(letter())
    (sent,) = mail.store.messages(BUTLER, "Sent")
    assert (sent.raw, sent.flags) == (letter(), frozenset({"\\Seen"}))


async def test_aiosmtplib_sends_utf8_addresses_and_8bit_text(mail: MailSimulator) -> None:
    raw = letter(text="grüße").decode().replace("Subject: News", "Subject: Größe")
    async with aiosmtplib.SMTP(
        hostname=mail.host, port=mail.smtp_port, local_hostname="client.example", start_tls=False
    ) as client:
        await client.ehlo()
        for extension in ("8bitmime", "smtputf8", "size", "auth"):
            assert client.supports_extension(extension)
        errors, _ = await client.sendmail(BUTLER, ["jürgen@elsewhere.example"], raw.encode(), mail_options=["SMTPUTF8"])
    assert errors == {}
    assert mail.store.accepted[0].recipients[0].address == "jürgen@elsewhere.example"
    assert mail.store.accepted[0].raw == raw.encode()


async def test_a_non_ascii_address_without_smtputf8_is_refused(mail: MailSimulator) -> None:
    def talk() -> list[int]:
        with connect(mail) as client:
            client.ehlo()
            client.mail(BUTLER)
            client.send("RCPT TO:<jürgen@elsewhere.example>\r\n".encode())
            utf8 = client.getreply()[0]
            client.send(b"RCPT TO:<\xff@elsewhere.example>\r\n")
            return [utf8, client.getreply()[0]]

    assert await blocking(talk) == [553, 553]


async def test_one_refused_recipient_does_not_hold_back_the_others(mail: MailSimulator) -> None:
    mail.faults.add(
        fault("rcpt", FaultKind.REPLY, code=550, text="5.1.1 No such user", recipient="*@elsewhere.example")
    )
    refused = await blocking(lambda: send(mail, OWNER, STRANGER))
    assert refused == {STRANGER: (550, b"5.1.1 No such user")}
    results = mail.store.accepted[0].recipients
    assert [(r.address, r.code, r.accepted) for r in results] == [(OWNER, 250, True), (STRANGER, 550, False)]
    assert len(mail.store.messages(OWNER)) == 1


async def test_greylisting_refuses_once_and_then_accepts(mail: MailSimulator, control: httpx2.AsyncClient) -> None:
    added = await control.post("/faults", json={"server": "smtp", "phase": "rcpt", "kind": "reply"})
    assert (added.status_code, added.json()["code"]) == (201, 451)

    with pytest.raises(smtplib.SMTPRecipientsRefused) as refusal:
        await blocking(lambda: send(mail))
    assert refusal.value.recipients[OWNER][0] == 451
    assert mail.store.accepted == ()
    assert (await control.get("/faults")).json() == {"faults": []}

    assert await blocking(lambda: send(mail)) == {}
    assert len(mail.store.accepted) == 1


async def test_a_drop_after_the_final_dot_keeps_the_mail_and_the_client_sees_an_error(
    mail: MailSimulator,
) -> None:
    mail.faults.add(fault("dot", FaultKind.DROP_AFTER))
    with pytest.raises(smtplib.SMTPServerDisconnected):
        await blocking(lambda: send(mail))
    assert [m.raw for m in mail.store.accepted] == [letter()]
    assert [m.raw for m in mail.store.messages(BUTLER, "Sent")] == [letter()]


async def test_a_drop_before_accepting_keeps_nothing(mail: MailSimulator) -> None:
    mail.faults.add(fault("dot", FaultKind.DROP_BEFORE, recipient=OWNER))
    with pytest.raises(smtplib.SMTPServerDisconnected):
        await blocking(lambda: send(mail))
    assert mail.store.accepted == ()
    assert mail.faults.waiting() == ()


@pytest.mark.parametrize("phase", ["connect", "ehlo", "auth", "mail", "rcpt", "data", "dot"])
async def test_every_phase_can_refuse_and_can_drop(mail: MailSimulator, phase: str) -> None:
    def attempt() -> None:
        with connect(mail) as client:
            client.login(BUTLER, ACCOUNTS[BUTLER])
            client.sendmail(BUTLER, (OWNER,), letter())

    mail.faults.add(fault(phase, FaultKind.REPLY, code=554, text="5.0.0 Go away", times=None))
    with pytest.raises(smtplib.SMTPException) as refusal:
        await blocking(attempt)
    assert "554" in str(refusal.value)
    mail.faults.clear()

    for kind in (FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER):
        mail.faults.add(fault(phase, kind))
        with pytest.raises((smtplib.SMTPServerDisconnected, ConnectionError)):
            await blocking(attempt)
    assert len(mail.store.accepted) == (1 if phase == "dot" else 0)
    await blocking(attempt)


async def test_a_delay_holds_the_answer_until_its_time_has_come() -> None:
    clock = ManualClock()
    async with serve_mail("127.0.0.1", 0, 0, None, clock=clock, accounts=ACCOUNTS) as mail:
        delay = mail.faults.add(fault("dot", FaultKind.DELAY, seconds=30))
        mail.faults.add(fault("mail", FaultKind.REPLY, code=451))
        with pytest.raises(smtplib.SMTPSenderRefused):
            await blocking(lambda: send(mail))
        sending = asyncio.create_task(blocking(lambda: send(mail)))
        await asyncio.wait_for(mail.faults.wait_until_used_up(delay.id), DEADLINE)
        assert mail.store.accepted == ()
        clock.advance(30)
        assert await sending == {}
        assert len(mail.store.accepted) == 1


async def test_the_server_answers_what_it_received_before_it_hangs_up() -> None:
    clock, book = ManualClock(), PendingFaults()
    pauses, store = Pauses(clock), MailStore(clock=clock, addresses=ACCOUNTS)
    held = book.add(fault("dot", FaultKind.DELAY, seconds=600))
    server = SmtpServer(store=store, faults=book, pauses=pauses, settings=SmtpSettings())
    port = await server.start("127.0.0.1", 0)

    def talk() -> dict[str, tuple[int, bytes]]:
        client = smtplib.SMTP("127.0.0.1", port, local_hostname="client.example", timeout=DEADLINE)
        try:
            return client.sendmail(BUTLER, (OWNER,), letter())
        finally:
            client.close()

    sending = asyncio.create_task(blocking(talk))
    await asyncio.wait_for(book.wait_until_used_up(held.id), DEADLINE)
    pauses.close()
    await server.stop()
    assert await sending == {}
    assert len(store.accepted) == 1


async def test_starttls_with_the_simulators_own_certificate(tmp_path: Path) -> None:
    async with serve_mail(
        "127.0.0.1", 0, 0, None, clock=ManualClock(), accounts=ACCOUNTS, starttls=True, require_auth=True
    ) as mail:
        trusting = ssl.create_default_context(cadata=mail.certificate_pem)

        def secured() -> dict[str, tuple[int, bytes]]:
            with connect(mail) as client:
                client.ehlo()
                assert client.has_extn("starttls") and not client.has_extn("auth")
                client.starttls(context=trusting)
                client.ehlo()
                assert client.has_extn("auth") and not client.has_extn("starttls")
                client.login(BUTLER, ACCOUNTS[BUTLER])
                return client.sendmail(BUTLER, (OWNER,), letter())

        def untrusting() -> None:
            with connect(mail) as client:
                client.starttls(context=ssl.create_default_context())

        assert await blocking(secured) == {}
        with pytest.raises(ssl.SSLCertVerificationError):
            await blocking(untrusting)
        mail.faults.add(fault("dot", FaultKind.DROP_AFTER))
        with pytest.raises((smtplib.SMTPServerDisconnected, OSError)):
            await blocking(secured)
        assert len(mail.store.accepted) == 2


async def test_a_wrong_password_is_refused_and_mail_needs_a_login_when_required() -> None:
    async with serve_mail("127.0.0.1", 0, 0, None, clock=ManualClock(), accounts=ACCOUNTS, require_auth=True) as mail:

        def login(mechanism: str, password: str) -> int:
            with connect(mail) as client:
                client.ehlo()
                client.user, client.password = BUTLER, password
                return client.auth(mechanism, getattr(client, f"auth_{mechanism.lower()}"))[0]

        for mechanism in ("PLAIN", "LOGIN"):
            with pytest.raises(smtplib.SMTPAuthenticationError) as refusal:
                await blocking(partial(login, mechanism, "wrong"))
            assert refusal.value.smtp_code == 535
            assert await blocking(partial(login, mechanism, ACCOUNTS[BUTLER])) == 235
        with pytest.raises(smtplib.SMTPSenderRefused) as unauthenticated:
            await blocking(lambda: send(mail))
        assert unauthenticated.value.smtp_code == 530
        assert mail.store.accepted == ()


async def test_a_message_over_the_size_limit_is_refused_announced_or_not() -> None:
    async with serve_mail("127.0.0.1", 0, 0, None, clock=ManualClock(), accounts=ACCOUNTS, size_limit=2000) as mail:
        big = letter(text="x\r\n" * 1000)

        def unannounced() -> int:
            with connect(mail) as client:
                client.ehlo()
                client.mail(BUTLER)
                client.rcpt(OWNER)
                return client.data(big)[0]

        with pytest.raises(smtplib.SMTPSenderRefused) as announced:
            await blocking(lambda: send(mail, raw=big))
        assert announced.value.smtp_code == 552
        assert await blocking(unannounced) == 552
        assert mail.store.accepted == ()


async def test_the_null_return_path_and_dot_stuffing_survive(mail: MailSimulator) -> None:
    def bounce() -> None:
        with connect(mail) as client:
            client.sendmail("", (OWNER,), letter(text="..\r\n.two\r\nend"))

    await blocking(bounce)
    assert mail.store.accepted[0].envelope_from == ""
    assert mail.store.accepted[0].raw == letter(text="..\r\n.two\r\nend")
    assert mail.store.messages(OWNER)[0].raw.startswith(b"Return-Path: <>\r\n")


async def test_malformed_commands_never_stop_the_server(mail: MailSimulator) -> None:
    rng = random.Random(20260101)
    hostile = [
        b"MAIL FROM:<\r\n",
        b"MAIL FROM:<a@b> SIZE=-1\r\n",
        b"RCPT TO:<@>\r\n",
        b"AUTH PLAIN =\r\n",
        b"AUTH PLAIN " + b64encode(b"\0\xff\xfe\0x") + b"\r\n",
        b"VRFY \xff\r\n",
        b"EHLO\r\nMAIL FROM:<>\r\nDATA\r\n",
        b"HELP " + b"x" * 5000 + b"\r\n",
        b"\r\n" * 30,
        b"\x00\x01\x02",
        b"BDAT 99999999999 LAST\r\n",
        b"STARTTLS\r\n",
        *(rng.randbytes(rng.randrange(1, 400)) + b"\r\n" for _ in range(40)),
    ]

    def attack() -> None:
        for line in hostile:
            poke(mail.host, mail.smtp_port, b"EHLO x\r\n" + line + b"QUIT\r\n")

    await blocking(attack)
    assert await blocking(lambda: send(mail)) == {}
    assert len(mail.store.accepted) == 1


_CHILD = """
import asyncio, sys
from pathlib import Path
from butlers.clock import SystemClock
from butlers.channels.email.simulator import serve_mail

async def main():
    accounts = {"butler@home.example": "p", "owner@home.example": "p"}
    async with serve_mail("127.0.0.1", 0, 0, None, clock=SystemClock(), accounts=accounts,
                          journal_path=Path(sys.argv[1])) as mail:
        print(mail.smtp_port, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_accepted_mail_survives_kill_9(tmp_path: Path) -> None:
    journal = tmp_path / "deep" / "mail.jsonl"
    with subprocess.Popen([sys.executable, "-c", _CHILD, str(journal)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        port = int(await blocking(child.stdout.readline))

        def talk() -> None:
            with smtplib.SMTP("127.0.0.1", port, local_hostname="client.example", timeout=DEADLINE) as client:
                client.sendmail(BUTLER, (OWNER, STRANGER), letter())
                os.kill(child.pid, signal.SIGKILL)

        await blocking(talk)
        assert child.wait(DEADLINE) == -signal.SIGKILL

    store = MailStore(clock=SystemClock(), addresses=ACCOUNTS, journal=(kept := Journal(journal)))
    kept.close()
    assert [m.raw for m in store.accepted] == [letter()]
    assert [r.address for r in store.accepted[0].recipients] == [OWNER, STRANGER]
    assert len(store.messages(OWNER)) == len(store.messages(BUTLER, "Sent")) == 1


def test_a_restart_rebuilds_exactly_what_was_there_and_cuts_off_a_torn_line(tmp_path: Path) -> None:
    path, clock = tmp_path / "mail.jsonl", ManualClock()

    @contextmanager
    def opened() -> Iterator[MailStore]:
        with closing(Journal(path)) as journal:
            yield MailStore(clock=clock, addresses=[OWNER], journal=journal)

    def state(store: MailStore) -> list[tuple[str, int, int, tuple[Any, ...]]]:
        boxes = store.mailboxes(OWNER).values()
        return [(b.name, b.uidvalidity, b.uidnext, tuple(b.messages.values())) for b in boxes]

    with opened() as store:
        for number in range(4):
            store.deliver(OWNER, letter(f"<{number}@x>"), envelope_from=STRANGER)
        store.set_flags(OWNER, "INBOX", 2, ["\\Seen"])
        store.expunge(OWNER, "inbox", [1, 4, 99])
        store.create_mailbox(OWNER, "Archive")
        store.renew_uidvalidity(OWNER, "Sent")
        before = state(store)
        assert list(store.mailbox(OWNER).messages) == [2, 3]

    with path.open("ab") as torn:
        torn.write(b'{"op":"appended","address":"own')
    with opened() as again:
        assert state(again) == before
        assert again.deliver(OWNER, letter("<5@x>"), envelope_from=STRANGER).uid == 5
    with opened() as once_more:
        assert len(once_more.messages(OWNER)) == 3
        assert path.stat().st_mode & 0o777 == 0o600
        once_more.reset()
        assert once_more.messages(OWNER) == ()
        assert once_more.mailbox(OWNER).uidvalidity > max(validity for _, validity, _, _ in before)
        emptied = state(once_more)
    with opened() as after_reset:
        assert state(after_reset) == emptied


async def test_a_caller_can_wait_for_mail(mail: MailSimulator) -> None:
    waiting = asyncio.create_task(mail.store.wait_until(lambda store: len(store.accepted) == 2))
    await blocking(lambda: send(mail))
    assert not waiting.done()
    await blocking(lambda: send(mail))
    await asyncio.wait_for(waiting, DEADLINE)


@pytest.mark.parametrize("starttls", [False, True])
async def test_drops_and_the_stop_work_on_uvloop_too(starttls: bool) -> None:
    """uvloop's transports are not asyncio's, and the daemon runs on uvloop."""

    def attempt(mail: MailSimulator) -> None:
        with connect(mail) as client:
            if starttls:
                client.starttls(context=ssl.create_default_context(cadata=mail.certificate_pem))
            client.sendmail(BUTLER, (OWNER,), letter())

    async def scenario() -> int:
        async with serve_mail(
            "127.0.0.1", 0, 0, None, clock=SystemClock(), accounts=ACCOUNTS, starttls=starttls
        ) as mail:
            for kind in (FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER):
                mail.faults.add(fault("dot", kind))
                with pytest.raises(smtplib.SMTPServerDisconnected, match=r"closed$"):
                    await blocking(lambda: attempt(mail))
            await blocking(lambda: attempt(mail))
            left_open = await blocking(lambda: connect(mail))
            accepted = len(mail.store.accepted)
        left_open.close()
        return accepted

    assert await blocking(lambda: uvloop.run(scenario())) == 2


async def test_letters_carry_the_simulated_time() -> None:
    clock = ManualClock()
    async with serve_mail("127.0.0.1", 0, 0, None, clock=clock, accounts=ACCOUNTS) as mail:
        start = clock.now()
        clock.advance(90)
        await blocking(lambda: send(mail))
        assert mail.store.accepted[0].at == start + timedelta(seconds=90)
        assert mail.store.messages(OWNER)[0].internal_date == start + timedelta(seconds=90)
