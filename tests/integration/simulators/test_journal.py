"""The journal of every simulator: failing writes, torn lines, wrong files, and who may use it."""

from __future__ import annotations

import asyncio
import os
import resource
import smtplib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from butlers.channels.email.simulator import MailSimulator, serve_mail
from butlers.channels.telegram.simulator import serve_telegram
from butlers.clock import SystemClock
from butlers.errors import ConfigurationError
from butlers.simulators.journal import Entry, Journal
from tests.integration.processes.command import butlers
from tests.integration.simulators.telegram_support import DEADLINE, serving
from tests.ports import free_port

OWNER = "owner@home.example"
LETTER = b"Subject: News\r\n\r\nhello\r\n"

mail_at = partial(serve_mail, "127.0.0.1", 0, 0, None, clock=SystemClock(), accounts={OWNER: "p"})
telegram_at = partial(serve_telegram, port=0, clock=SystemClock())
Serve = Callable[..., AbstractAsyncContextManager[Any]]


@contextmanager
def room_for(path: Path, more: int) -> Iterator[None]:
    """A disk that is full after so many bytes: the kernel writes what fits and refuses the rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def kept(path: Path) -> list[Entry]:
    entries: list[Entry] = []
    with closing(Journal(path)) as journal:
        journal.replay(entries.append)
    return entries


@pytest.mark.parametrize("fits", [0, 1, 7, 15])
def test_a_write_that_fails_half_way_leaves_nothing_behind(tmp_path: Path, fits: int) -> None:
    path = tmp_path / "journal"
    with closing(Journal(path)) as journal:
        journal.append({"number": 1})
        with room_for(path, fits), pytest.raises(OSError, match="too large"):
            journal.append({"number": "two"})
        assert path.read_bytes() == b'{"number":1}\n'
        journal.append({"number": 3})
    assert kept(path) == [{"number": 1}, {"number": 3}]


@pytest.mark.parametrize("restart", [True, False])
def test_half_a_line_that_could_not_be_removed_at_once_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    def broken(fd: int, length: int) -> None:
        raise OSError("the disk is gone")

    path = tmp_path / "journal"
    journal = Journal(path)
    journal.append({"number": 1})
    with room_for(path, 5), monkeypatch.context() as patched, pytest.raises(OSError, match="gone"):
        patched.setattr(os, "ftruncate", broken)
        journal.append({"number": 2})
    assert path.read_bytes() == b'{"number":1}\n{"num'
    if restart:
        journal.close()
        journal = Journal(path)
    journal.append({"number": 3})
    journal.close()
    assert kept(path) == [{"number": 1}, {"number": 3}]


async def test_a_bot_is_told_when_its_message_could_not_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "telegram.jsonl"
    async with serving(journal_path=path) as hand:
        with room_for(path, 20):
            refused = await hand.bot("sendMessage", chat_id=5, text="lost")
        assert (refused["error_code"], refused["description"]) == (500, "Internal Server Error")
        assert (await hand.bot("sendMessage", chat_id=5, text="kept"))["result"]["message_id"] == 1
    async with serving(journal_path=path) as hand:
        assert await hand.texts() == ["kept"]


async def test_a_sender_is_told_when_its_mail_could_not_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "mail.jsonl"

    def send(mail: MailSimulator) -> None:
        with smtplib.SMTP(mail.host, mail.smtp_port, local_hostname="client.example", timeout=DEADLINE) as client:
            client.sendmail("friend@elsewhere.example", [OWNER], LETTER)

    async with mail_at(journal_path=path) as mail:
        with room_for(path, 20), pytest.raises(smtplib.SMTPDataError, match="451"):
            await asyncio.to_thread(send, mail)
        assert mail.store.accepted == ()
        await asyncio.to_thread(send, mail)
    async with mail_at(journal_path=path) as mail:
        assert [accepted.raw for accepted in mail.store.accepted] == [LETTER]


@pytest.fixture(params=[telegram_at, mail_at], ids=["telegram", "mail"])
async def serve(request: pytest.FixtureRequest) -> AsyncIterator[Serve]:
    yield request.param


@pytest.mark.parametrize("line", [b"not ours", b"[]", b"7", b"{}", b'{"op":"flown"}', b'{"changes":[{"change":"x"}]}'])
async def test_a_line_that_is_not_ours_stops_the_start(tmp_path: Path, serve: Serve, line: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(line + b"\n")
    for _ in range(2):  # the first failure must have let go of the file
        with pytest.raises(ConfigurationError, match="line 1"):
            async with serve(journal_path=path):
                pass
    assert path.read_bytes() == line + b"\n"


async def test_a_journal_has_one_user_at_a_time(tmp_path: Path, serve: Serve) -> None:
    path = tmp_path / "journal"
    async with serve(journal_path=path):
        with pytest.raises(ConfigurationError, match="another simulator is using this journal"):
            async with serve(journal_path=path):
                pass
    async with serve(journal_path=path):
        pass


async def test_a_second_process_is_refused_without_a_stack_trace(tmp_path: Path) -> None:
    command = ("simulate", "telegram", "--data-dir", tmp_path, "--port", f"telegram_simulator={free_port()}")
    async with telegram_at(journal_path=tmp_path / "simulators" / "telegram.jsonl"):
        second = await asyncio.to_thread(butlers, *command)
    assert (second.returncode, second.stdout) == (3, "")
    assert "another simulator is using this journal" in second.stderr and "Traceback" not in second.stderr
