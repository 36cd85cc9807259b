"""An IMAP server that sends without end is cut off; the caller gets a clear error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from butlers.channels.email.mailbox import imap
from butlers.channels.email.mailbox.imap import ImapAccount, ImapClient
from butlers.channels.email.mailbox.mail_server import MailServer
from butlers.errors import TargetUnavailable


@asynccontextmanager
async def serving(answer_to_fetch: bytes) -> AsyncIterator[int]:
    """Just enough IMAP to open a folder."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"* OK ready\r\n")
        while line := await reader.readline():
            tag, command = line.split()[0], line.split()[1].upper()
            if command == b"CAPABILITY":
                writer.write(b"* CAPABILITY IMAP4rev1\r\n")
            elif command == b"EXAMINE":
                writer.write(b"* 1 EXISTS\r\n* OK [UIDVALIDITY 1] x\r\n* OK [UIDNEXT 2] x\r\n")
            elif command == b"UID":
                writer.write(answer_to_fetch)
            writer.write(tag + b" OK done\r\n")
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


def client(port: int) -> ImapClient:
    server = MailServer(protocol="imap", host="127.0.0.1", port=port, tls="none")
    return ImapClient(ImapAccount(server=server, address="a@x.example", password="x", timeout_s=10.0))


async def test_a_literal_without_end_is_refused_before_it_is_read() -> None:
    async with serving(b"* 1 FETCH (UID 1 BODY[] {99999999999}\r\nabc") as port:
        with pytest.raises(TargetUnavailable, match="announces 99999999999 bytes"):
            async with asyncio.timeout(8):  # and not only when the task's time is over
                await client(port).read("INBOX", lambda folder: folder.mails([1]))


async def test_answers_without_end_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap, "MAX_RECEIVED", 100_000)
    async with serving(b"* OK still there\r\n" * 10_000) as port:
        with pytest.raises(TargetUnavailable, match="sent more than 100000 bytes"):
            await client(port).read("INBOX", lambda folder: folder.mails([1]))
