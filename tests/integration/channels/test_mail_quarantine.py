"""A mail that cannot be handled is counted, quarantined after three attempts, and holds up nobody."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from butlers.butler.toolbox import ToolBox
from butlers.channels.email.simulator import MailSimulator, serve_mail
from butlers.clock import SystemClock
from butlers.daemon.compose.base import base_migrations
from butlers.errors import InternalError, TargetUnavailable, ValidationError
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri
from tests.integration.channels.mail_reader import OPERATOR, POISON, Door, mail_reader
from tests.integration.channels.receipt_rows import MIGRATIONS, SCHEMA
from tests.integration.simulators.mail_state import ACCOUNTS, BUTLER, STRANGER
from tests.integration.simulators.mail_support import controlling

TOO_MUCH = "a\n" * 1_000_000  # takes more memory to take apart than the reader's parser has


@dataclass(slots=True, kw_only=True)
class MailSystem:
    mail: MailSimulator
    control: httpx2.AsyncClient
    dsn: str
    database: Database
    tools: ToolBox
    door: Door = field(default_factory=Door)

    async def arrives(self, subject: str, text: str = "hello") -> None:
        body = {"from": STRANGER, "to": BUTLER, "subject": subject, "text": text}
        assert (await self.control.post("/messages", json=body)).status_code == 201

    async def route(self) -> dict[str, int]:
        counts = await self.tools.call("email_check_and_route_inbox", OPERATOR, {})
        return {name: number for name, number in counts.items() if number}

    async def fails_three_times(self) -> dict[str, int]:
        """The only new mail, at a door that has a mistake; what the last look counted."""
        self.door.refusal = RuntimeError("a mistake of ours")
        for _ in range(2):
            with pytest.raises(InternalError):
                await self.route()
        return await self.route()

    async def quarantined(self) -> list[dict[str, Any]]:
        mails: list[dict[str, Any]] = (await self.tools.call("email_list_quarantined", OPERATOR, {}))["mails"]
        return mails

    async def counted(self) -> list[int]:
        return [row["attempts"] for row in await self.database.fetch("select attempts from messenger.mail_attempts")]

    async def process_reads(self) -> int:
        """Another process reads the mailbox once; its exit code."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.channels.mail_reader",
            json.dumps([self.dsn, self.mail.imap_port]),
            cwd=Path(__file__).parents[3],
        )
        return await process.wait()


@pytest.fixture
async def system(postgres_server: EmbeddedPostgres) -> AsyncIterator[MailSystem]:
    door = Door()
    async with (
        serve_mail("127.0.0.1", 0, 0, None, clock=SystemClock(), accounts=ACCOUNTS) as mail,
        controlling(mail) as control,
        cloned_database_uri(postgres_server, [base_migrations(SCHEMA), *MIGRATIONS]) as dsn,
        await Database.connect(dsn, max_size=3) as database,
        mail_reader(database, mail.imap_port, door) as tools,
    ):
        yield MailSystem(mail=mail, control=control, dsn=dsn, database=database, tools=tools, door=door)


async def test_a_mail_that_cannot_be_taken_apart_is_quarantined_and_the_others_are_served(system: MailSystem) -> None:
    await system.arrives("before")
    await system.arrives("hostile", TOO_MUCH)
    await system.arrives("behind")
    assert await system.route() == {"routed": 2, "failed": 1}
    assert system.door.accepted == ["before", "behind"]
    (mail,) = await system.quarantined()
    assert mail["attempts"] == 3
    assert mail["reason"] == "it could not be taken apart: it needed more than 64 MiB of memory"
    assert await system.route() == {}


async def test_a_mail_that_kills_the_process_is_quarantined_after_three_deaths(system: MailSystem) -> None:
    await system.arrives("hostile", POISON)
    await system.arrives("behind")
    assert [await system.process_reads() for _ in range(3)] == [9, 9, 9]
    assert await system.counted() == [3]
    assert await system.process_reads() == 0
    (mail,) = await system.quarantined()
    assert mail["reason"] == "the process that worked on it ended before it was done"
    assert await system.route() == {}  # the checkpoint is behind both: the fourth process handed the other one in


async def test_a_mail_whose_handling_fails_unexpectedly_is_quarantined(system: MailSystem) -> None:
    await system.arrives("hostile")
    assert await system.fails_three_times() == {"failed": 1}
    assert [mail["reason"] for mail in await system.quarantined()] == ["its handling raised RuntimeError"]


async def test_what_is_not_the_fault_of_the_mail_does_not_count(system: MailSystem) -> None:
    await system.arrives("patient")
    system.door.refusal = TargetUnavailable("Switchboard is away")
    for _ in range(4):
        assert await system.route() == {"failed": 1}
    system.door.refusal, system.door.opens = None, asyncio.Event()
    for _ in range(4):
        system.door.reached.clear()
        stopped = asyncio.create_task(system.route())
        async with asyncio.timeout(30):
            await system.door.reached.wait()
        stopped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopped
    assert await system.counted() == [0]
    system.door.opens.set()
    assert await system.route() == {"routed": 1}
    assert await system.counted() == []


async def test_a_parser_that_does_not_start_quarantines_nobody(
    system: MailSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await system.arrives(f"innocent {number}")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(tmp_path / "gone"))
        for _ in range(4):
            assert await system.route() == {"failed": 1}  # the look ends with the first mail
    assert await system.quarantined() == []
    assert await system.counted() == [0]
    assert await system.route() == {"routed": 3}
    assert system.door.accepted == [f"innocent {number}" for number in range(3)]


async def test_an_operator_has_a_quarantined_mail_tried_again(system: MailSystem) -> None:
    await system.arrives("later")
    await system.fails_three_times()
    (mail,) = await system.quarantined()
    system.door.refusal = TargetUnavailable("Switchboard is away")
    with pytest.raises(TargetUnavailable):
        await system.tools.call("email_retry_quarantined", OPERATOR, {"mail": mail["mail"]})
    assert len(await system.quarantined()) == 1  # an attempt that fails loses nothing
    system.door.refusal = None
    answer = await system.tools.call("email_retry_quarantined", OPERATOR, {"mail": mail["mail"]})
    assert (answer["handled"], answer["routed"], answer["retried_by"]) == (True, 1, "operator")
    assert system.door.accepted == ["later"]
    assert await system.quarantined() == []
    for wrong in (mail["mail"], "nonsense", "1-99999999999999999999999"):
        with pytest.raises(ValidationError):
            await system.tools.call("email_retry_quarantined", OPERATOR, {"mail": wrong})


async def test_quarantined_mails_are_listed_page_by_page(system: MailSystem) -> None:
    for number in range(3):
        await system.arrives(f"hostile {number}")
        await system.fails_three_times()
    first = await system.tools.call("email_list_quarantined", OPERATOR, {"limit": 2})
    rest = await system.tools.call("email_list_quarantined", OPERATOR, {"cursor": first["next_cursor"]})
    assert [mail["uid"] for mail in first["mails"] + rest["mails"]] == [3, 2, 1]
    assert rest["next_cursor"] is None
    with pytest.raises(ValidationError):
        await system.tools.call("email_list_quarantined", OPERATOR, {"cursor": "x"})


async def test_a_mail_that_the_server_does_not_hand_over_is_quarantined_and_the_others_are_served(
    system: MailSystem,
) -> None:
    async with broken_mailbox(BROKEN) as port, mail_reader(system.database, port, system.door) as tools:
        for _ in range(2):
            with pytest.raises(TargetUnavailable):
                await tools.call("email_check_and_route_inbox", OPERATOR, {})
        assert (await system.counted(), system.door.accepted) == ([2], ["mail 1"])
        await tools.call("email_check_and_route_inbox", OPERATOR, {})
        assert system.door.accepted == ["mail 1", "mail 3"]
        (mail,) = (await tools.call("email_list_quarantined", OPERATOR, {}))["mails"]
        assert mail["mail"] == f"7-{BROKEN}"
        assert mail["reason"].startswith("the server does not hand it over: ")


async def test_a_server_that_hands_over_nothing_is_no_fault_of_its_mails(system: MailSystem) -> None:
    async with broken_mailbox(*range(1, 4)) as port, mail_reader(system.database, port, system.door) as tools:
        for _ in range(5):
            with pytest.raises(TargetUnavailable):
                await tools.call("email_check_and_route_inbox", OPERATOR, {})
        assert (await system.counted(), system.door.accepted) == ([], [])


BROKEN = 2  # a UID that the server below lists and does not hand over


@asynccontextmanager
async def broken_mailbox(*broken: int) -> AsyncIterator[int]:
    """Just enough of an IMAP server with three mails, some of which it does not hand over."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"* OK ready\r\n")
        while line := (await reader.readline()).decode().split():
            untagged, status = answer([word.upper() for word in line[1:]], broken)
            writer.write(f"{untagged}{line[0]} {status} done\r\n".encode())
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


def answer(command: list[str], broken: Sequence[int]) -> tuple[str, str]:
    if command[:2] == ["UID", "SEARCH"]:
        first, _, last = command[3].partition(":")
        return f"* SEARCH {' '.join(map(str, range(int(first), int(last or first) + 1)))}\r\n", "OK"
    if command[:2] == ["UID", "FETCH"]:
        uids = [int(uid) for uid in command[2].split(",")]
        return ("", "NO") if set(broken) & set(uids) else ("".join(map(fetched, uids)), "OK")
    told = {
        "CAPABILITY": "* CAPABILITY IMAP4rev1\r\n",
        "EXAMINE": "* 3 EXISTS\r\n* OK [UIDVALIDITY 7] x\r\n* OK [UIDNEXT 4] x\r\n",
    }
    return told.get(command[0], ""), "OK"


def fetched(uid: int) -> str:
    mail = f"From: {STRANGER}\r\nMessage-ID: <{uid}@x>\r\nSubject: mail {uid}\r\n\r\nhello\r\n"
    return f"* {uid} FETCH (UID {uid} RFC822.SIZE {len(mail)} FLAGS () BODY[] {{{len(mail)}}}\r\n{mail})\r\n"
