"""IMAP with the standard library: one short connection per task, in a thread of its own.

A connection per task costs a login and saves every question about what an idle connection may have missed. Each read
from the socket has a time, and so has the task as a whole: when it is over, or the caller is cancelled, the socket is
closed and the thread ends with it. What a server may send has bounds, too: one literal, and all of a task.
"""

from __future__ import annotations

import asyncio
import imaplib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from butlers.channels.email.mailbox.folder import MAX_BYTES, Folder, FolderRefused, quoted
from butlers.channels.email.mailbox.mail_server import LoginRefused, MailServer, NoEncryptionOffered
from butlers.errors import TargetUnavailable

MAX_LITERAL = MAX_BYTES + 64 * 1024  # bytes of one mail as a server may send it
MAX_RECEIVED = 128 * 1024 * 1024  # bytes of all that a server may send for one task
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImapAccount:
    """Where the mail lies."""

    server: MailServer
    address: str
    password: str
    login: str | None = None  # the address, unless the provider gave another name
    timeout_s: float = 30.0  # of one task
    inbox: str = "INBOX"

    def __repr__(self) -> str:
        return f"ImapAccount({self.address} at {self.server.place})"


class ImapClient:
    def __init__(self, account: ImapAccount) -> None:
        self.account = account
        self._context = account.server.context()

    async def read(self, folder: str, task: Callable[[Folder], T], *, timeout_s: float | None = None) -> T:
        """Do something with a folder, which is opened for reading only."""
        line = _Line()
        try:
            async with asyncio.timeout(timeout_s or self.account.timeout_s):
                return await asyncio.to_thread(self._work, line, folder, task)
        except FolderRefused:
            remedy = "check that the mailbox has this folder (modules.email.inbox)"
            raise TargetUnavailable("the mailbox refuses to be read", retryable=False, remedy=remedy) from None
        except (LoginRefused, NoEncryptionOffered, imaplib.IMAP4.error, OSError, ValueError, IndexError) as error:
            raise self.account.server.fault(error) from error  # also what cannot be parsed
        finally:
            line.cut()

    async def holds(self, folder: str, message_id: str) -> bool:
        """Whether a mail with this Message-ID lies in the folder."""
        return bool(await self.read(folder, lambda opened: opened.by_message_id(message_id)))

    async def probe(self, *, timeout_s: float | None = None) -> None:
        """Log in and open the inbox; raises what is wrong with it."""
        await self.read(self.account.inbox, lambda _: None, timeout_s=timeout_s)

    def _work(self, line: _Line, folder: str, task: Callable[[Folder], T]) -> T:
        connection = self._connected(line)
        _login(connection, self.account)
        result = task(Folder.open(connection, folder))
        connection.logout()
        return result

    def _connected(self, line: _Line) -> imaplib.IMAP4:
        """A connection, encrypted as the server's mode says."""
        server, timeout_s = self.account.server, self.account.timeout_s
        if server.mode == "implicit":
            return line.take(_BoundedSsl(server.host, server.port, ssl_context=self._context, timeout=timeout_s))
        connection = line.take(_Bounded(server.host, server.port, timeout=timeout_s))
        if server.mode == "starttls":
            if "STARTTLS" not in connection.capabilities:
                raise NoEncryptionOffered
            connection.starttls(self._context)
        return connection


class _Bounded(imaplib.IMAP4):
    """imaplib bounds a line at a million bytes, but believes a server about the length of a literal."""

    received = 0  # bytes, of this connection

    def read(self, size: int) -> bytes:
        if size > MAX_LITERAL:
            raise _too_much(f"announces {size} bytes at once")
        self._count(size)
        return super().read(size)

    def readline(self) -> bytes:
        line = super().readline()
        self._count(len(line))
        return line

    def _count(self, size: int) -> None:
        self.received += size
        if self.received > MAX_RECEIVED:
            raise _too_much(f"sent more than {MAX_RECEIVED} bytes for one task")


class _BoundedSsl(_Bounded, imaplib.IMAP4_SSL):
    """The same over TLS from the first byte on."""


def _too_much(problem: str) -> TargetUnavailable:
    remedy = "check imap_host: a mail server sends no more of a mail than it was asked for"
    return TargetUnavailable(f"the IMAP server {problem}", remedy=remedy)


class _Line:
    """The connection that is in use, so that somebody else may cut it."""

    def __init__(self) -> None:
        self._connection: imaplib.IMAP4 | None = None
        self._cut = False

    def take(self, connection: imaplib.IMAP4) -> imaplib.IMAP4:
        self._connection = connection
        if self._cut:
            self.cut()
        return connection

    def cut(self) -> None:
        self._cut = True
        if self._connection is not None:
            try:
                self._connection.shutdown()
            except OSError:
                return


def _login(connection: imaplib.IMAP4, account: ImapAccount) -> None:
    name = account.login or account.address
    if not name.isascii() or not account.password.isascii():
        raise LoginRefused
    try:
        # imaplib quotes the password only.
        connection.login(quoted(name), account.password)
    except imaplib.IMAP4.abort:
        raise
    except imaplib.IMAP4.error:
        raise LoginRefused from None
