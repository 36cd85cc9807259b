"""SMTP, IMAP and the control API on three ports of one event loop, over one store.

    async with serve_mail("127.0.0.1", 0, 0, 0, clock=clock, accounts={"butler@example.org": "secret"}) as mail:
        ... mail.smtp_port, mail.imap_port, mail.control_url, mail.store, mail.faults

Give no control port to mount `mail.control_routes()` in an application of your own, such as the Telegram simulator's
(`extra_routes`). When the block ends, what was received is answered before anybody is hung up on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Route

from butlers.channels.email.simulator.control import control_routes
from butlers.channels.email.simulator.faults import FaultBook
from butlers.channels.email.simulator.imap import ImapServer
from butlers.channels.email.simulator.mailbox import canonical
from butlers.channels.email.simulator.smtp import SmtpServer, SmtpSettings
from butlers.channels.email.simulator.store import MailStore
from butlers.channels.email.simulator.tls import self_signed
from butlers.clock import Clock, SystemClock
from butlers.serving.server import GuestServer
from butlers.simulators.control import guarded
from butlers.simulators.journal import open_journal
from butlers.simulators.pauses import Pauses
from butlers.simulators.ports import listen_as


@dataclass(frozen=True, slots=True, kw_only=True)
class MailSimulator:
    """A running mail world."""

    host: str
    smtp_port: int
    imap_port: int
    control_port: int | None
    store: MailStore
    faults: FaultBook
    certificate_pem: str | None  # what a client must trust when the connection is encrypted

    @property
    def control_url(self) -> str:
        return f"http://{self.host}:{self.control_port}/control/mail"

    def control_routes(self) -> list[Route]:
        return control_routes(self.store, self.faults)


@asynccontextmanager
async def serve_mail(
    host: str,
    smtp_port: int,
    imap_port: int,
    control_port: int | None,
    *,
    clock: Clock,
    accounts: Mapping[str, str],
    journal_path: Path | None = None,
    starttls: bool = False,
    implicit_tls: bool = False,  # from the first byte, as on ports 465 and 993; instead of STARTTLS
    require_auth: bool = False,
    size_limit: int = 10 * 1024 * 1024,
    copy_to_sent: bool = True,
) -> AsyncIterator[MailSimulator]:
    """Run the simulators; port 0 takes a free one. `accounts` maps each local address to its password."""
    passwords = {canonical(address): password for address, password in accounts.items()}
    # Clients check certificates against the machine's clock, whatever clock the mail runs on.
    identity = self_signed(host, now=SystemClock().now()) if starttls or implicit_tls else None
    tls_context = identity.context if identity and not implicit_tls else None
    at_once = identity.context if identity and implicit_tls else None
    settings = SmtpSettings(
        size_limit=size_limit,
        passwords=passwords,
        require_auth=require_auth,
        tls_context=tls_context,
        copy_to_sent=copy_to_sent,
    )
    faults = FaultBook()
    async with AsyncExitStack() as stack:
        journal = open_journal(journal_path)
        stack.callback(journal.close)
        store = MailStore(clock=clock, addresses=passwords, journal=journal)
        pauses = Pauses(clock)
        smtp = SmtpServer(store=store, faults=faults, pauses=pauses, settings=settings)
        imap = ImapServer(store=store, faults=faults, pauses=pauses, passwords=passwords, tls_context=tls_context)
        stack.push_async_callback(smtp.stop)
        stack.push_async_callback(imap.stop)
        stack.callback(pauses.close)
        yield MailSimulator(
            host=host,
            smtp_port=await smtp.start(host, smtp_port, tls=at_once),
            imap_port=await imap.start(host, imap_port, tls=at_once),
            control_port=await _serve_control(stack, host, control_port, control_routes(store, faults)),
            store=store,
            faults=faults,
            certificate_pem=identity.certificate_pem if identity else None,
        )


async def _serve_control(stack: AsyncExitStack, host: str, port: int | None, routes: list[Route]) -> int | None:
    if port is None:
        return None
    listener = stack.enter_context(listen_as("mail simulator's control API", host, port))
    server = GuestServer(guarded(Starlette(routes=routes), host))
    stack.push_async_callback(server.close)
    await server.open(listener)
    bound: int = listener.getsockname()[1]
    return bound
