"""The IMAP simulator, seen by the standard library's imaplib."""

from __future__ import annotations

import asyncio
import imaplib
import random
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from butlers.channels.email.simulator import MailSimulator, serve_mail
from butlers.channels.email.simulator.faults import FaultKind, MailFault, Server
from butlers.clock import ManualClock, SystemClock
from tests.integration.simulators.mail_support import DEADLINE, blocking, controlling, poke

OWNER, STRANGER = "owner@home.example", "friend@elsewhere.example"
PASSWORD = 'pass "word" \\ 1'


@pytest.fixture(autouse=True)
def every_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[imaplib.IMAP4] = []
    original = imaplib.IMAP4.open

    def tracked(client: imaplib.IMAP4, *where: Any) -> None:
        original(client, *where)
        opened.append(client)

    monkeypatch.setattr(imaplib.IMAP4, "open", tracked)
    yield
    for client in opened:
        with suppress(OSError):
            client.shutdown()


@pytest.fixture
async def mail() -> AsyncIterator[MailSimulator]:
    clock = ManualClock(datetime(2026, 3, 10, 12, tzinfo=UTC))
    async with serve_mail("127.0.0.1", 0, 0, None, clock=clock, accounts={OWNER: PASSWORD}) as running:
        yield running


@pytest.fixture
async def control(mail: MailSimulator) -> AsyncIterator[httpx2.AsyncClient]:
    async with controlling(mail) as client:
        yield client


def letter(number: int, text: str = "hello") -> bytes:
    head = f"From: Friend <{STRANGER}>\r\nTo: {OWNER}\r\nSubject: Letter {number}\r\n"
    return f"{head}Message-ID: <{number}@elsewhere.example>\r\n\r\n{text}\r\n".encode()


def deliver(mail: MailSimulator, *numbers: int) -> None:
    for number in numbers:
        mail.store.deliver(OWNER, letter(number), envelope_from=STRANGER)


def connected(mail: MailSimulator) -> imaplib.IMAP4:
    return imaplib.IMAP4(mail.host, mail.imap_port, timeout=DEADLINE)


def logged_in(mail: MailSimulator) -> imaplib.IMAP4:
    client = connected(mail)
    client.login(OWNER, PASSWORD)
    return client


def selected(mail: MailSimulator) -> imaplib.IMAP4:
    client = logged_in(mail)
    client.select()
    return client


def uids(client: imaplib.IMAP4, *criteria: str) -> list[int]:
    status, data = client.uid("SEARCH", *criteria)
    assert status == "OK", data
    return [int(uid) for uid in (data[0] or b"").split()]


def number(client: imaplib.IMAP4, code: str) -> int:
    _, data = client.response(code)
    assert data[0] is not None
    return int(data[0])


def start_idle(client: imaplib.IMAP4) -> None:
    client.send(b"I1 IDLE\r\n")
    assert client.readline().startswith(b"+")


def exists(client: imaplib.IMAP4) -> int:
    """The next EXISTS that the server pushes; it may say more about the same message around it."""
    while not (line := client.readline()).endswith(b" EXISTS\r\n"):
        assert line.startswith(b"* "), line
    return int(line.split()[1])


def fault(command: str, kind: FaultKind, **more: Any) -> MailFault:
    return MailFault(server=Server.IMAP, moment=command, kind=kind, **more)


async def test_login_list_select_and_status(mail: MailSimulator) -> None:
    deliver(mail, 1, 2)
    inbox = mail.store.mailbox(OWNER)

    def talk() -> None:
        client = connected(mail)
        assert {"IMAP4REV1", "AUTH=PLAIN"} <= set(client.capabilities)
        assert client.authenticate("PLAIN", lambda _: f"\0{OWNER}\0{PASSWORD}".encode())[0] == "OK"
        names = [re.sub(rb".* ", b"", line) for line in client.list()[1] if isinstance(line, bytes)]
        assert names == [b"INBOX", b"Sent"]
        assert client.select() == ("OK", [b"2"])
        assert (number(client, "UIDVALIDITY"), number(client, "UIDNEXT")) == (inbox.uidvalidity, 3)
        _, (status,) = client.status("INBOX", "(MESSAGES UIDNEXT UIDVALIDITY UNSEEN)")
        expected = f"INBOX (MESSAGES 2 UIDNEXT 3 UIDVALIDITY {inbox.uidvalidity} UNSEEN 2)"
        assert status == expected.encode()
        assert client.select("Nowhere")[0] == "NO"
        assert client.logout()[0] == "BYE"

    await blocking(talk)


@pytest.mark.parametrize("password", ["wrong", "", "\u00ad"])
async def test_a_wrong_password_is_refused(mail: MailSimulator, password: str) -> None:
    def talk() -> None:
        client = connected(mail)
        with pytest.raises(imaplib.IMAP4.error):
            client.authenticate("PLAIN", lambda _: f"\0{OWNER}\0{password}".encode())
        with pytest.raises(imaplib.IMAP4.error):
            client.login(STRANGER, PASSWORD)
        assert client.login(OWNER.upper(), PASSWORD)[0] == "OK"

    await blocking(talk)


async def test_search_by_message_id_flags_dates_and_uid_ranges(mail: MailSimulator) -> None:
    deliver(mail, 1, 2)
    assert isinstance(mail.store.clock, ManualClock)
    mail.store.clock.advance(timedelta(days=2).total_seconds())
    deliver(mail, 3)
    mail.store.set_flags(OWNER, "INBOX", 2, ["\\Seen"])

    def talk() -> None:
        client = selected(mail)
        assert uids(client, "ALL") == [1, 2, 3]
        assert uids(client, "HEADER", "Message-ID", '"<2@elsewhere.example>"') == [2]
        assert uids(client, "HEADER", "message-id", '"<9@elsewhere.example>"') == []
        assert uids(client, "UNSEEN") == [1, 3]
        assert uids(client, "SINCE", "11-Mar-2026") == [3]
        assert uids(client, "UID", "2:3", "UNSEEN") == [3]
        assert uids(client, "UID", "1:4294967295") == [1, 2, 3]
        assert uids(client, "OR", "SUBJECT", '"Letter 1"', "NOT", "FROM", "Friend") == [1]

    await blocking(talk)


async def test_a_range_to_star_names_the_last_message_even_from_beyond_it(mail: MailSimulator) -> None:
    def talk(expected: list[int]) -> None:
        client = selected(mail)
        assert uids(client, "UID", "50:*") == expected
        _, data = client.uid("FETCH", "50:*", "(UID)")
        assert len([item for item in data if item]) == len(expected)

    await blocking(lambda: talk([]))
    deliver(mail, 1, 2)
    await blocking(lambda: talk([2]))


async def test_fetch_gives_bytes_flags_dates_and_structure(mail: MailSimulator) -> None:
    deliver(mail, 1)
    raw = mail.store.messages(OWNER)[0].raw

    def talk() -> None:
        client = selected(mail)
        _, data = client.uid("FETCH", "1", "(FLAGS INTERNALDATE RFC822.SIZE ENVELOPE BODY.PEEK[])")
        info, body = data[0]
        assert body == raw
        assert b'INTERNALDATE "10-Mar-2026 12:00:00 +0000"' in info
        assert f"RFC822.SIZE {len(raw)}".encode() in info
        assert b'"Letter 1"' in info and b'"<1@elsewhere.example>"' in info
        assert uids(client, "UNSEEN") == [1], "PEEK must not mark as read"
        _, data = client.uid("FETCH", "1", "(BODY.PEEK[HEADER])")
        assert data[0][1] == raw[: raw.index(b"\r\n\r\n") + 4]
        _, data = client.uid("FETCH", "1", "(BODY[])")
        assert data[0][1] == raw
        assert uids(client, "UNSEEN") == []

    await blocking(talk)
    assert mail.store.messages(OWNER)[0].flags == {"\\Seen"}


async def test_store_expunge_copy_and_move_change_the_shared_store(mail: MailSimulator) -> None:
    deliver(mail, 1, 2, 3)

    def talk() -> None:
        client = selected(mail)
        assert client.uid("STORE", "1", "+FLAGS", "(\\Deleted \\Flagged)")[0] == "OK"
        assert client.expunge() == ("OK", [b"1"])
        assert client.uid("COPY", "2", "Sent")[0] == "OK"
        assert client.uid("MOVE", "3", "Sent")[0] == "OK"
        assert client.create("Archive")[0] == "OK"
        assert client.delete("Archive")[0] == "OK"
        assert client.select("INBOX", readonly=True) == ("OK", [b"1"])
        assert client.uid("STORE", "2", "+FLAGS", "(\\Seen)")[0] == "NO"

    await blocking(talk)
    assert [m.uid for m in mail.store.messages(OWNER)] == [2]
    assert [b"Letter 2" in m.raw for m in mail.store.messages(OWNER, "Sent")] == [True, False]


async def test_append_files_a_sent_message_that_message_id_finds_again(mail: MailSimulator) -> None:
    def talk() -> None:
        client = logged_in(mail)
        when = imaplib.Time2Internaldate(datetime(2026, 2, 1, 8, tzinfo=UTC))
        status, data = client.append("Sent", "(\\Seen)", when, letter(7, text="x" * 70_000))
        assert status == "OK"
        assert f"APPENDUID {mail.store.mailbox(OWNER, 'Sent').uidvalidity} 1".encode() in data[0]
        client.select("Sent")
        assert uids(client, "HEADER", "Message-ID", '"<7@elsewhere.example>"') == [1]
        assert client.append("Nowhere", "", when, letter(8))[0] == "NO"

    await blocking(talk)
    (stored,) = mail.store.messages(OWNER, "Sent")
    assert stored.raw == letter(7, text="x" * 70_000)
    assert stored.flags == {"\\Seen"}
    assert stored.internal_date == datetime(2026, 2, 1, 8, tzinfo=UTC)


async def test_idle_is_told_of_new_mail_at_once(mail: MailSimulator, control: httpx2.AsyncClient) -> None:
    client = await blocking(lambda: selected(mail))
    await blocking(lambda: start_idle(client))
    for count in (1, 2):
        body = {"from": STRANGER, "to": OWNER, "subject": "s", "text": "t"}
        assert (await control.post("/messages", json=body)).status_code == 201
        assert await blocking(lambda: exists(client)) == count

    def done() -> bytes:
        client.send(b"DONE\r\n")
        while not (line := client.readline()).startswith(b"I1 "):
            pass
        return line

    assert (await blocking(done)).startswith(b"I1 OK")


async def test_mail_that_came_between_select_and_idle_is_not_slept_through(mail: MailSimulator) -> None:
    client = await blocking(lambda: selected(mail))
    deliver(mail, 1)
    await blocking(lambda: start_idle(client))
    assert await blocking(lambda: exists(client)) == 1
    await blocking(client.shutdown)


async def test_a_uidvalidity_change_ends_the_session_and_renumbers(
    mail: MailSimulator, control: httpx2.AsyncClient
) -> None:
    deliver(mail, 1, 2, 3)
    mail.store.expunge(OWNER, "INBOX", [1])

    def before() -> tuple[imaplib.IMAP4, int]:
        client = selected(mail)
        assert uids(client, "ALL") == [2, 3]
        return client, number(client, "UIDVALIDITY")

    client, old = await blocking(before)
    idle = await blocking(lambda: selected(mail))
    await blocking(lambda: start_idle(idle))
    renewed = (await control.post("/uidvalidity", json={"address": OWNER})).json()["uidvalidity"]
    assert renewed > old

    assert (await blocking(idle.readline)).startswith(b"* BYE")
    assert await blocking(idle.readline) == b""
    with pytest.raises(imaplib.IMAP4.abort):
        await blocking(lambda: [client.uid("FETCH", "2", "(BODY.PEEK[])"), client.noop()])

    def after() -> None:
        fresh = selected(mail)
        assert number(fresh, "UIDVALIDITY") == renewed
        assert uids(fresh, "ALL") == [1, 2]

    await blocking(after)


async def test_a_reset_ends_idling_sessions(mail: MailSimulator) -> None:
    idle = await blocking(lambda: selected(mail))
    await blocking(lambda: start_idle(idle))
    mail.store.reset()
    assert (await blocking(idle.readline)).startswith(b"* BYE")
    deliver(mail, 1)
    assert await blocking(lambda: uids(selected(mail), "ALL")) == [1]


async def test_two_sessions_see_each_others_changes(mail: MailSimulator) -> None:
    deliver(mail, 1, 2)

    def talk() -> None:
        one, two = selected(mail), selected(mail)
        one.uid("STORE", "1", "+FLAGS", "(\\Deleted)")
        one.expunge()
        two.noop()
        assert two.response("EXPUNGE") == ("EXPUNGE", [b"1"])
        assert uids(two, "ALL") == [2]

    await blocking(talk)


@pytest.mark.parametrize("command", ["SEARCH", "UID SEARCH", "*"])
async def test_faults_answer_no_and_bad_as_often_as_asked(mail: MailSimulator, command: str) -> None:
    deliver(mail, 1)
    client = await blocking(lambda: selected(mail))
    mail.faults.add(fault(command, FaultKind.NO, text="[UNAVAILABLE] Later"))
    mail.faults.add(fault(command, FaultKind.BAD, text="Broken"))

    def talk() -> None:
        assert client.uid("SEARCH", "ALL") == ("NO", [b"[UNAVAILABLE] Later"])
        with pytest.raises(imaplib.IMAP4.error, match="Broken"):
            client.uid("SEARCH", "ALL")
        assert uids(client, "ALL") == [1]

    await blocking(talk)


@pytest.mark.parametrize(("kind", "kept"), [(FaultKind.DROP_BEFORE, 0), (FaultKind.DROP_AFTER, 1)])
async def test_a_drop_around_append_keeps_the_message_or_not(mail: MailSimulator, kind: FaultKind, kept: int) -> None:
    client = await blocking(lambda: logged_in(mail))
    mail.faults.add(fault("APPEND", kind))
    with pytest.raises((imaplib.IMAP4.abort, OSError)):
        await blocking(lambda: client.append("Sent", "", "", letter(1)))
    assert len(mail.store.messages(OWNER, "Sent")) == kept
    assert await blocking(lambda: logged_in(mail).select()) == ("OK", [b"0"])


@pytest.mark.parametrize("command", ["CONNECT", "LOGIN", "SELECT", "UID FETCH", "IDLE", "NOOP"])
async def test_any_command_can_lose_the_connection(mail: MailSimulator, command: str) -> None:
    deliver(mail, 1)

    def talk() -> None:
        client = selected(mail)
        client.uid("FETCH", "1", "(FLAGS)")
        client.noop()
        start_idle(client)

    mail.faults.add(fault(command, FaultKind.DROP_BEFORE))
    with pytest.raises((imaplib.IMAP4.abort, OSError, AssertionError)):
        await blocking(talk)
    assert mail.faults.waiting() == ()
    await blocking(talk)


async def test_a_delay_holds_the_answer_until_its_time_has_come(mail: MailSimulator) -> None:
    client = await blocking(lambda: logged_in(mail))
    delay = mail.faults.add(fault("SELECT", FaultKind.DELAY, seconds=60))
    selecting = asyncio.create_task(blocking(client.select))
    await asyncio.wait_for(mail.faults.wait_until_used_up(delay.id), DEADLINE)
    assert not selecting.done()
    assert isinstance(mail.store.clock, ManualClock)
    mail.store.clock.advance(60)
    assert await selecting == ("OK", [b"0"])


async def test_starttls() -> None:
    async with serve_mail(
        "127.0.0.1", 0, 0, None, clock=SystemClock(), accounts={OWNER: PASSWORD}, starttls=True
    ) as mail:
        context = ssl.create_default_context(cadata=mail.certificate_pem)

        def talk() -> tuple[str, list[Any]]:
            client = connected(mail)
            client.starttls(context)
            client.login(OWNER, PASSWORD)
            return client.select()

        assert await blocking(talk) == ("OK", [b"0"])


async def test_the_mailbox_and_its_uids_survive_a_restart(tmp_path: Any) -> None:
    journal = tmp_path / "mail.jsonl"

    async def look(*, deliver_first: bool) -> tuple[int, list[int]]:
        async with serve_mail(
            "127.0.0.1", 0, 0, None, clock=SystemClock(), accounts={OWNER: PASSWORD}, journal_path=journal
        ) as mail:
            if deliver_first:
                deliver(mail, 1, 2)

            def talk() -> tuple[int, list[int]]:
                client = selected(mail)
                return number(client, "UIDVALIDITY"), uids(client, "ALL")

            return await blocking(talk)

    first = await look(deliver_first=True)
    assert await look(deliver_first=False) == first
    assert first[1] == [1, 2]


async def test_malformed_commands_never_stop_the_server(mail: MailSimulator) -> None:
    deliver(mail, 1)
    rng = random.Random(20260101)
    login = f'L LOGIN {OWNER} "{PASSWORD}"\r\nS SELECT INBOX\r\n'.replace('"word"', '\\"word\\"').encode()
    hostile = [
        b"\r\n",
        b"A\r\n",
        b"A LOGIN\r\n",
        b"A LOGIN {5}\r\n",
        b"A LOGIN {99999999999999999999+}\r\n",
        b"A AUTHENTICATE PLAIN ====\r\n",
        b"A AUTHENTICATE PLAIN\r\n*\r\n",
        b"A AUTHENTICATE NOPE\r\n",
        b"A UID FETCH 0:0 (BODY[\r\n",
        b"A UID FETCH 1 (BODY[1.2.3.4]<0.1>)\r\n",
        b"A FETCH 1:*,*:1,4294967295 ALL\r\n",
        b"A UID SEARCH HEADER\r\n",
        b"A UID SEARCH CHARSET NOPE ALL\r\n",
        b'A UID SEARCH HEADER "\xff" "\xfe"\r\n',
        b"A UID SEARCH SINCE 99-Foo-0000\r\n",
        b"A UID SEARCH " + b"NOT " * 500 + b"ALL\r\n",
        b"A UID SEARCH " + b"(" * 2000 + b"\r\n",
        b"A STORE 1 FLAGS (\\\r\n",
        b"A APPEND Sent {3}\r\nabc",
        b"A APPEND Sent {99999999999}\r\n",
        b"A SELECT &&&-\r\n",
        b'A LIST "" "' + b"*" * 60 + b'x"\r\n',
        b"A IDLE\r\nnonsense\r\n",
        b"x" * 200_000 + b"\r\n",
        *(rng.randbytes(rng.randrange(1, 300)) + b"\r\n" for _ in range(40)),
        *(b"A UID " + rng.randbytes(rng.randrange(1, 60)) + b"\r\n" for _ in range(40)),
    ]

    def attack() -> None:
        for line in hostile:
            for prefix in (b"", login):
                poke(mail.host, mail.imap_port, prefix + line + b"Z LOGOUT\r\n")

    await asyncio.wait_for(asyncio.to_thread(attack), 60)
    assert await blocking(lambda: uids(selected(mail), "ALL")) == [1]


async def test_strange_messages_can_still_be_fetched_and_searched(mail: MailSimulator) -> None:
    rng = random.Random(7)
    strange = [
        b"",
        b"\r\n",
        b"no header at all",
        b"Subject: =?nope?x?=\r\nDate: soon\r\nFrom: <<>>\r\nTo: ,,;\r\n\r\n\x00\xff",
        b"Content-Type: multipart/mixed; boundary=\r\n\r\n--\r\n",
        b"Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\nContent-Type: message/rfc822\r\n\r\n--a--",
        b"Content-Type: message/rfc822\r\n\r\n" * 30,
        b"Message-ID: <a\r\n b@c>\r\nMessage-ID: <d@e>\n\nbare line feeds\n",
        *(rng.randbytes(rng.randrange(1, 500)) for _ in range(30)),
    ]
    for raw in strange:
        mail.store.append(OWNER, "INBOX", raw)

    def talk() -> None:
        client = selected(mail)
        for uid, raw in enumerate(strange, start=1):
            status, data = client.uid("FETCH", str(uid), "(FLAGS RFC822.SIZE BODY.PEEK[])")
            assert (status, data[0][1]) == ("OK", raw)
        assert uids(client, "HEADER", "Message-ID", '"<d@e>"') == [8]

    await blocking(talk)
