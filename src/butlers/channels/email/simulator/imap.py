"""The IMAP simulator: pymap's IMAP4rev1 server over the shared store.

Why pymap and not a server of our own: IMAP is mostly grammar (literals, sequence sets, search keys, ENVELOPE,
BODYSTRUCTURE), and pymap has it all, with IDLE, UIDPLUS and MOVE. We write only what is ours: where the mail lies
(`imap_folders.py`, `imap_login.py`) and where faults strike, which is around pymap's `do_command`:

    read a command -> [delay | NO | BAD | drop_before] -> do it -> [drop_after] -> answer

The quirk that real servers share holds: `UID n:*` names the last message even when n lies beyond it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, closing
from ssl import SSLContext
from typing import NoReturn

from proxyprotocol.sock import SocketInfo
from pymap.context import connection_exit
from pymap.imap import IMAPConnection
from pymap.imap.state import ConnectionState
from pymap.parsing.command import Command
from pymap.parsing.command.nonauth import AuthenticateCommand, LoginCommand
from pymap.parsing.commands import InvalidCommand
from pymap.parsing.response import CommandResponse, Response, ResponseBad, ResponseNo
from pysasl.creds.server import ServerCredentials

from butlers.channels.email.simulator.attention import until_answered, waits_for_its_client
from butlers.channels.email.simulator.faults import Fault, FaultBook, FaultKind, Server
from butlers.channels.email.simulator.imap_login import Config, Login
from butlers.channels.email.simulator.store import MailStore
from butlers.simulators.pauses import Pauses
from butlers.simulators.ports import listen_as

_log = logging.getLogger(__name__)
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _FaultyState(ConnectionState):
    """pymap's command dispatch with faults around it."""

    def __init__(
        self, login: Login, config: Config, *, faults: FaultBook, pauses: Pauses, hang_up: Callable[[], None]
    ) -> None:
        super().__init__(login, config)
        self._faults = faults
        self._pauses = pauses
        self._hang_up = hang_up

    async def do_greeting(self) -> CommandResponse:
        fault = self._faults.take(Server.IMAP, "CONNECT")
        refused = await self._suffer(fault, b"*")
        greeting = refused or await super().do_greeting()
        self._drop_after(fault)
        return greeting

    async def do_authenticate(
        self, cmd: AuthenticateCommand | LoginCommand, creds: ServerCredentials | None
    ) -> CommandResponse:
        # LOGIN passed do_command on its way here.
        fault = None if isinstance(cmd, LoginCommand) else self._take(cmd)
        refused = await self._suffer(fault, cmd.tag)
        response = refused or await super().do_authenticate(cmd, creds)
        self._drop_after(fault)
        return response

    async def do_command(self, cmd: Command) -> CommandResponse:
        fault = None if isinstance(cmd, InvalidCommand) else self._take(cmd)
        refused = await self._suffer(fault, cmd.tag)
        response = refused or await super().do_command(cmd)
        self._drop_after(fault)
        return response

    def _take(self, cmd: Command) -> Fault | None:
        return self._faults.take(Server.IMAP, cmd.command.decode("ascii"))

    async def _suffer(self, fault: Fault | None, tag: bytes) -> CommandResponse | None:
        if fault is None:
            return None
        await self._pauses.sleep(fault.seconds)
        if fault.kind is FaultKind.DROP_BEFORE:
            self._drop()
        answers = {FaultKind.NO: ResponseNo, FaultKind.BAD: ResponseBad}
        answer = answers.get(fault.kind)
        return None if answer is None else answer(tag, fault.text.encode())

    def _drop_after(self, fault: Fault | None) -> None:
        if fault is not None and fault.kind is FaultKind.DROP_AFTER:
            self._drop()

    def _drop(self) -> NoReturn:
        self._hang_up()
        raise ConnectionAbortedError


class _Connection(IMAPConnection):
    """pymap's connection, which does not outlive a BYE said while the client idles."""

    __slots__ = ()

    async def write_updates(self, untagged: Iterable[Response]) -> None:
        for response in untagged:
            await self.write_response(response)
            if response.is_terminal:
                self.close()
                raise ConnectionAbortedError


class ImapServer:
    """Listens; when it stops, it answers what it has received and hangs up."""

    def __init__(
        self,
        *,
        store: MailStore,
        faults: FaultBook,
        pauses: Pauses,
        passwords: Mapping[str, str],
        tls_context: SSLContext | None = None,
    ) -> None:
        self._config = Config(host="", port=0, tls_context=tls_context)
        self._login = Login(store=store, passwords=passwords, config=self._config)
        self._faults = faults
        self._pauses = pauses
        self._connections: dict[asyncio.Task[None], _Streams] = {}
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, *, tls: SSLContext | None = None) -> int:
        """Returns the port, which matters when 0 was asked for. `tls`: encrypted from the first byte."""
        listener = listen_as("IMAP simulator", host, port)
        self._server = await asyncio.start_server(self._connected, sock=listener, ssl=tls)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await until_answered(lambda: all(waits_for_its_client(reader) for reader, _ in self._connections.values()))
        connections = dict(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        for _, writer in connections.values():
            writer.transport.abort()  # a polite TLS goodbye would wait for the client
        await asyncio.sleep(0)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections[task] = (reader, writer)
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if writer.get_extra_info("sslcontext") is None:  # TLS keeps a buffer of its own
            writer.transport.set_write_buffer_limits(high=0)
        state = _FaultyState(
            self._login, self._config, faults=self._faults, pauses=self._pauses, hang_up=writer.transport.abort
        )
        async with AsyncExitStack() as stack:
            connection_exit.set(stack)
            info = SocketInfo.get(writer, None)
            connection = _Connection(self._config.commands, self._config, reader, writer, info)
            stack.enter_context(closing(connection))
            try:
                await connection.run(state)
            except ConnectionError:
                _log.debug("imap client went away")
            except Exception as error:  # pymap has told the client; the server must stay up
                _log.warning("imap connection ended: %s", type(error).__name__)
