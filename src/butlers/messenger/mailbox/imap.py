"""IMAP with the standard library: one short connection per task, in a thread of its own.

A connection per task costs a login and saves every question about what an idle connection may have missed. Each read
from the socket has a time, and so has the task as a whole: when it is over, or the caller is cancelled, the socket is
closed and the thread ends with it.
"""

from __future__ import annotations

import asyncio
import imaplib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from butlers.errors import TargetUnavailable, TimeoutExceeded
from butlers.messenger.mailbox.encryption import Encryption
from butlers.messenger.mailbox.folder import Folder, FolderRefused, quoted

IMPLICIT_TLS = 993
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImapAccount:
    """Where the mail lies."""

    host: str
    port: int
    address: str
    password: str
    tls_ca: Path | None = None
    timeout_s: float = 30.0  # of one task
    inbox: str = "INBOX"

    def __repr__(self) -> str:
        return f"ImapAccount({self.address} at {self.host}:{self.port})"


class ImapClient:
    def __init__(self, account: ImapAccount) -> None:
        self.account = account
        self._encryption = Encryption(host=account.host, tls_ca=account.tls_ca)
        self._context = self._encryption.context()

    async def read(self, folder: str, task: Callable[[Folder], T]) -> T:
        """Do something with a folder, which is opened for reading only."""
        line = _Line()
        try:
            async with asyncio.timeout(self.account.timeout_s):
                return await asyncio.to_thread(self._work, line, folder, task)
        except TimeoutError:
            raise TimeoutExceeded("the mailbox gave no answer in time") from None
        except FolderRefused:
            raise TargetUnavailable("the mailbox refuses to be read", retryable=False) from None
        except ssl.SSLCertVerificationError:
            raise TargetUnavailable("the mailbox's certificate is not trusted", retryable=False) from None
        except _LoginRefused:
            raise TargetUnavailable("the mailbox refuses the login", retryable=False) from None
        except (imaplib.IMAP4.error, OSError, ValueError, IndexError) as error:  # also what cannot be parsed
            raise TargetUnavailable(f"the mailbox cannot be read ({type(error).__name__})") from error
        finally:
            line.cut()

    async def holds(self, folder: str, message_id: str) -> bool:
        """Whether a mail with this Message-ID lies in the folder."""
        return bool(await self.read(folder, lambda opened: opened.by_message_id(message_id)))

    def _work(self, line: _Line, folder: str, task: Callable[[Folder], T]) -> T:
        connection = self._connected(line)
        _login(connection, self.account)
        result = task(Folder.open(connection, folder))
        connection.logout()
        return result

    def _connected(self, line: _Line) -> imaplib.IMAP4:
        """The same rule as for sending: beyond this machine encrypted, or not at all."""
        if self._encryption.required and self.account.port == IMPLICIT_TLS:
            return line.take(
                imaplib.IMAP4_SSL(
                    self.account.host, self.account.port, ssl_context=self._context, timeout=self.account.timeout_s
                )
            )
        connection = line.take(self._plain())
        offered = "STARTTLS" in connection.capabilities
        if not self._encryption.required and not offered:
            return connection
        try:
            connection.starttls(self._context)
        except ssl.SSLCertVerificationError:
            if self._encryption.required:
                raise
            connection.shutdown()
            return line.take(self._plain())
        return connection

    def _plain(self) -> imaplib.IMAP4:
        return imaplib.IMAP4(self.account.host, self.account.port, timeout=self.account.timeout_s)


class _LoginRefused(Exception):
    pass


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
    if not account.address.isascii() or not account.password.isascii():
        raise _LoginRefused
    try:
        # imaplib quotes the password only.
        connection.login(quoted(account.address), account.password)
    except imaplib.IMAP4.abort:
        raise
    except imaplib.IMAP4.error:
        raise _LoginRefused from None
