"""The SMTP simulator: a real SMTP server (aiosmtpd's protocol) in front of the shared store.

    connect -> ehlo [-> auth] -> mail -> rcpt ... -> data -> (the message) -> dot
       each arrow is a phase at which a fault may strike (`faults.py`)

- Every recipient gets its own answer. A message is accepted when the final dot is answered with 250, and it is in the
  journal before that answer is written. `drop_after` at `dot` is the case that senders find hard: the message is
  accepted and the client never hears of it.
- Mail for a local account lands in its INBOX; mail for anybody else is taken as a relay would take it. Both are in the
  transcript. Mail from a local account is also filed in its Sent folder, as the large providers do, so that a sender
  can look there whether an unanswered message was accepted.
- SMTPUTF8 is offered. An address outside ASCII without that parameter gets 553, as RFC 6531 says.
- AUTH is offered when there are accounts, and with STARTTLS only after it: no password travels in clear when it need
  not.

aiosmtpd's Controller would start a thread; the protocol is used directly on the running loop instead.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from aiosmtpd.smtp import MISSING, SMTP, AuthResult, Envelope, LoginPassword, Session, syntax

from butlers.channels.email.simulator.faults import FaultKind, MailFault, PendingFaults, Server
from butlers.channels.email.simulator.store import MailStore, RecipientResult, canonical
from butlers.serving.server import take_in
from butlers.simulators.engine import Pauses, listen_as

_GRACE_SECONDS = 5.0  # for a client that does not take its answer
_POLL_SECONDS = 0.01


def waits_for_its_client(reader: asyncio.StreamReader) -> bool:
    """Whether a task waits for bytes that have not come; asyncio has no public word for it."""
    return getattr(reader, "_waiter", None) is not None


async def until_answered(nothing_owed: Callable[[], bool]) -> None:
    """Return when everything received so far is answered, or when our patience ends."""
    await take_in()
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_SECONDS):
            while not nothing_owed():  # noqa: ASYNC110 - nobody tells us when a task begins to wait
                await asyncio.sleep(_POLL_SECONDS)


_log = logging.getLogger(__name__)
_NULL_PATH = "<>"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtpSettings:
    """How the SMTP server behaves when no fault strikes."""

    hostname: str = "mail.simulator.invalid"
    size_limit: int = 10 * 1024 * 1024  # bytes of one message
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)  # by address
    require_auth: bool = False
    tls_context: ssl.SSLContext | None = None  # offers STARTTLS
    copy_to_sent: bool = True


class _Answers(Envelope):
    """An envelope that also remembers what each recipient was told."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[RecipientResult] = []


class SmtpConnection(SMTP):
    """One client. The `handle_*` methods are aiosmtpd's hooks: they return the reply."""

    def __init__(self, *, store: MailStore, faults: PendingFaults, pauses: Pauses, settings: SmtpSettings) -> None:
        self._store = store
        self._faults = faults
        self._pauses = pauses
        self._settings = settings
        super().__init__(
            self,
            hostname=settings.hostname,
            ident="ESMTP butlers simulator",
            data_size_limit=settings.size_limit,
            enable_SMTPUTF8=True,
            tls_context=settings.tls_context,
            auth_require_tls=settings.tls_context is not None,
            authenticator=self._check_password,
            loop=asyncio.get_running_loop(),
        )
        # Set here and not by argument, where it warns on every connection that AUTH without TLS is unsafe.
        self._auth_required = settings.require_auth

    @property
    def serving(self) -> asyncio.Task[None] | None:
        task: asyncio.Task[None] | None = self._handler_coroutine
        return task

    @property
    def owes_nothing(self) -> bool:
        if self.serving is None or self.serving.done():
            return True
        return self._reader is not None and waits_for_its_client(self._reader)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if transport.get_extra_info("sslcontext") is None:  # TLS keeps a buffer of its own
            cast("asyncio.WriteTransport", transport).set_write_buffer_limits(high=0)

    def hang_up(self) -> None:
        if self.transport is not None:
            cast("asyncio.WriteTransport", self.transport).abort()

    # Phases

    async def _handle_client(self) -> None:
        with suppress(ConnectionError):
            refused = await self._strike("connect")
            if refused is None:
                await super()._handle_client()
            else:
                await self.push(refused)
                self._writer.close()

    async def handle_EHLO(  # noqa: N802
        self, _server: SMTP, session: Session, _envelope: Envelope, hostname: str, responses: list[str]
    ) -> list[str]:
        refused = await self._strike("ehlo")
        if refused is not None:
            return [refused]
        session.host_name = hostname
        if self._settings.passwords:
            return responses
        return [line for line in responses if not line.startswith("250-AUTH")]

    async def handle_HELO(  # noqa: N802
        self, _server: SMTP, session: Session, _envelope: Envelope, hostname: str
    ) -> str:
        """The same phase as EHLO, to which clients fall back when that is refused."""
        refused = await self._strike("ehlo")
        if refused is None:
            session.host_name = hostname
        return refused or f"250 {self._settings.hostname}"

    async def handle_AUTH(self, *_: Any) -> Any:  # noqa: N802
        return await self._strike("auth") or MISSING

    async def handle_MAIL(  # noqa: N802
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        reply = await self._strike("mail") or _undeliverable(address, envelope)
        if reply is not None:
            return reply
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 2.1.0 Ok"

    async def handle_RCPT(  # noqa: N802
        self, _server: SMTP, _session: Session, envelope: _Answers, address: str, _options: list[str]
    ) -> str:
        reply = await self._strike("rcpt", (address,)) or _undeliverable(address, envelope) or "250 2.1.5 Ok"
        code, text = int(reply[:3]), reply[4:]
        if code < 300:
            envelope.rcpt_tos.append(address)
        if _is_text(address):
            envelope.results.append(RecipientResult(address=address, code=code, text=text))
        return reply

    @syntax("DATA")
    async def smtp_DATA(self, arg: str) -> None:  # noqa: N802
        recipients = self.envelope.rcpt_tos if self.envelope is not None else []
        refused = await self._strike("data", recipients) if recipients else None
        if refused is None:
            await super().smtp_DATA(arg)
        else:
            await self.push(refused)

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: _Answers) -> str:  # noqa: N802
        fault = self._faults.take_at(Server.SMTP, "dot", envelope.rcpt_tos)
        refused = await self._suffer(fault)
        if refused is not None:
            return refused
        mail = self._store.accept(
            envelope_from="" if envelope.mail_from == _NULL_PATH else str(envelope.mail_from),
            recipients=envelope.results,
            raw=envelope.original_content or b"",
            copy_to_sent=self._settings.copy_to_sent,
        )
        if fault is not None and fault.kind is FaultKind.DROP_AFTER:
            await self._vanish()
        return f"250 2.0.0 Ok: queued as {mail.number}"

    async def handle_exception(self, error: Exception) -> str:
        """A simulator must not fall over, and a client must not see our insides."""
        _log.error("smtp command failed: %s", type(error).__name__)
        return "451 4.3.0 Internal error"

    # Faults

    async def _strike(self, phase: str, recipients: tuple[str, ...] | list[str] = ()) -> str | None:
        """The reply of a fault, or None to go on. Before the final dot nothing can have been accepted."""
        fault = self._faults.take_at(Server.SMTP, phase, recipients)
        refused = await self._suffer(fault)
        if fault is not None and fault.kind is FaultKind.DROP_AFTER:
            await self._vanish()
        return refused

    async def _suffer(self, fault: MailFault | None) -> str | None:
        if fault is None:
            return None
        await self._pauses.sleep(fault.seconds)
        if fault.kind is FaultKind.DROP_BEFORE:
            await self._vanish()
        return f"{fault.code} {fault.text}" if fault.kind is FaultKind.REPLY else None

    async def _vanish(self) -> None:
        """Cut the connection; the loss cancels the task that waits here."""
        self.hang_up()
        await asyncio.get_running_loop().create_future()

    # aiosmtpd

    def _create_envelope(self) -> Envelope:
        return _Answers()

    def _check_password(
        self, _server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, given: LoginPassword
    ) -> AuthResult:
        address = canonical(given.login.decode("utf-8", "replace"))
        expected = self._settings.passwords.get(address)
        success = expected is not None and hmac.compare_digest(expected.encode(), given.password)
        return AuthResult(success=success, handled=False, auth_data=given if success else None)


class SmtpServer:
    """Listens; when it stops, it answers what it has received and hangs up."""

    def __init__(self, *, store: MailStore, faults: PendingFaults, pauses: Pauses, settings: SmtpSettings) -> None:
        self._store = store
        self._faults = faults
        self._pauses = pauses
        self._settings = settings
        self._connections: list[SmtpConnection] = []
        self._server: asyncio.Server | None = None
        # aiosmtpd logs addresses, message lines and, on every login, a deprecation of its own.
        logging.getLogger("mail.log").setLevel(logging.ERROR)

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Returns the port, which matters when 0 was asked for. `tls`: encrypted from the first byte."""
        listener = listen_as("SMTP simulator", host, port)
        self._server = await asyncio.get_running_loop().create_server(self._connect, sock=listener, ssl=tls)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await until_answered(lambda: all(c.owes_nothing for c in self._connections))
        tasks = [connection.serving for connection in self._connections if connection.serving is not None]
        for connection in self._connections:
            connection.hang_up()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # let the loop close the sockets

    def _connect(self) -> SmtpConnection:
        self._connections = [c for c in self._connections if c.serving is None or not c.serving.done()]
        connection = SmtpConnection(
            store=self._store, faults=self._faults, pauses=self._pauses, settings=self._settings
        )
        self._connections.append(connection)
        return connection


def _undeliverable(address: str, envelope: Envelope) -> str | None:
    if address.isascii() or (envelope.smtp_utf8 and _is_text(address)):
        return None
    return "553 5.6.7 Address outside ASCII needs SMTPUTF8"


def _is_text(address: str) -> bool:
    """Bytes that are not UTF-8 arrive as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in address)
