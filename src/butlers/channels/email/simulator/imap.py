"""The IMAP simulator: pymap's IMAP4rev1 server over the shared store.

Why pymap and not a server of our own: IMAP is mostly grammar (literals, sequence sets, search keys, ENVELOPE,
BODYSTRUCTURE), and pymap has it all, with IDLE, UIDPLUS and MOVE. We write only what is ours: where the mail lies
(`imap_folders.py`) and where faults strike, which is around pymap's `do_command`:

    read a command -> [delay | NO | BAD | drop_before] -> do it -> [drop_after] -> answer

The quirk that real servers share holds: `UID n:*` names the last message even when n lies beyond it.
"""

from __future__ import annotations

import asyncio
import logging
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import datetime
from functools import partial
from ssl import SSLContext
from typing import NoReturn

from proxyprotocol.noop import ProxyProtocolNoop
from proxyprotocol.sock import SocketInfo
from pymap.backend.session import BaseSession
from pymap.concurrent import Subsystem
from pymap.config import BackendCapability, IMAPConfig
from pymap.context import connection_exit
from pymap.exceptions import AuthorizationFailure, InvalidAuth, NotAllowedError
from pymap.imap import IMAPConnection
from pymap.imap.state import ConnectionState
from pymap.interfaces.login import IdentityInterface, LoginInterface
from pymap.parsing.command import Command
from pymap.parsing.command.nonauth import AuthenticateCommand, LoginCommand
from pymap.parsing.commands import InvalidCommand
from pymap.parsing.response import CommandResponse, Response, ResponseBad, ResponseNo
from pymap.token import AllTokens
from pymap.user import UserMetadata
from pysasl import SASLAuth
from pysasl.creds.server import ServerCredentials
from pysasl.hashing import Cleartext
from pysasl.identity import ClearIdentity

from butlers.channels.email.simulator.faults import FaultKind, PendingFaults, Server
from butlers.channels.email.simulator.imap_folders import Folders, Message
from butlers.channels.email.simulator.smtp import until_answered, waits_for_its_client
from butlers.channels.email.simulator.store import MailStore, canonical
from butlers.simulators.engine import Pauses, listen_as


class Config(IMAPConfig):
    """pymap's settings, without its command line."""

    def __init__(self, *, host: str, port: int, tls_context: SSLContext | None) -> None:
        super().__init__(
            Namespace(passlib_cfg=None, proxy_protocol=None),
            host=host,
            port=port,
            subsystem=Subsystem.for_asyncio(),
            cpu_subsystem=Subsystem.for_asyncio(),  # the default would start threads
            ssl_context=tls_context,
            tls_enabled=tls_context is not None,
            hash_context=Cleartext(),
            proxy_protocol=ProxyProtocolNoop(),
            reject_dnsbl=False,
            max_append_len=10 * 1024 * 1024,
            bad_command_limit=20,
        )

        # pymap would search the installed packages for mechanisms on every connection.
        self._mechanisms = SASLAuth.named([b"PLAIN", b"LOGIN"])

    @property
    def tls_auth(self) -> SASLAuth:
        return self._mechanisms

    @property
    def backend_capability(self) -> BackendCapability:
        return BackendCapability(idle=True, object_id=False, multi_append=True)

    @property
    def greeting(self) -> bytes:
        return b"IMAP simulator ready"


class Session(BaseSession[Message]):
    def __init__(self, address: str, config: Config, folders: Folders) -> None:
        super().__init__(address)
        self._config = config
        self._folders = folders

    @property
    def config(self) -> Config:
        return self._config

    @property
    def mailbox_set(self) -> Folders:
        return self._folders


class Login(LoginInterface):
    def __init__(self, *, store: MailStore, passwords: Mapping[str, str], config: Config) -> None:
        self.store = store
        self.config = config
        self._passwords = passwords
        self._tokens = AllTokens(config)
        self._folders: dict[str, Folders] = {}
        store.on_change(self._announce)

    @property
    def tokens(self) -> AllTokens:
        return self._tokens

    async def authenticate(self, credentials: ServerCredentials) -> Identity:
        address = canonical(credentials.authcid)
        password = self._passwords.get(address)
        if password is None or not _verified(credentials, password) or not self.store.is_local(address):
            raise InvalidAuth
        return Identity(address, self)

    async def authorize(self, authenticated: IdentityInterface, authzid: str) -> Identity:
        if canonical(authzid) != authenticated.name:
            raise AuthorizationFailure
        return Identity(authenticated.name, self)

    def folders(self, address: str) -> Folders:
        return self._folders.setdefault(address, Folders(self.store, address))

    def _announce(self) -> None:
        for folders in self._folders.values():
            folders.announce()


class Identity(IdentityInterface):
    def __init__(self, address: str, login: Login) -> None:
        self._address = address
        self._login = login

    @property
    def name(self) -> str:
        return self._address

    @property
    def roles(self) -> frozenset[str]:
        return frozenset()

    @asynccontextmanager
    async def new_session(self) -> AsyncIterator[Session]:
        yield Session(self._address, self._login.config, self._login.folders(self._address))

    async def new_token(self, *, expiration: datetime | None = None) -> str | None:
        return None

    async def get(self) -> NoReturn:
        raise NotAllowedError

    async def set(self, metadata: UserMetadata) -> NoReturn:
        raise NotAllowedError

    async def delete(self) -> NoReturn:
        raise NotAllowedError


def _verified(credentials: ServerCredentials, password: str) -> bool:
    try:
        return bool(credentials.verify(ClearIdentity(credentials.authcid, password)))
    except ValueError:  # not preparable as a SASL string
        return False


_log = logging.getLogger(__name__)
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


_ANSWERS = {FaultKind.NO: ResponseNo, FaultKind.BAD: ResponseBad}


def _name(command: Command) -> str:
    return command.command.decode("ascii")


class _FaultyState(ConnectionState):
    """pymap's command dispatch with faults around it."""

    def __init__(
        self, login: Login, config: Config, *, faults: PendingFaults, pauses: Pauses, hang_up: Callable[[], None]
    ) -> None:
        super().__init__(login, config)
        self._faults = faults
        self._pauses = pauses
        self._hang_up = hang_up

    async def do_greeting(self) -> CommandResponse:
        return await self._faulty("CONNECT", b"*", super().do_greeting)

    async def do_authenticate(
        self, cmd: AuthenticateCommand | LoginCommand, creds: ServerCredentials | None
    ) -> CommandResponse:
        if isinstance(cmd, LoginCommand):  # it passed do_command on its way here
            return await super().do_authenticate(cmd, creds)
        return await self._faulty(_name(cmd), cmd.tag, partial(super().do_authenticate, cmd, creds))

    async def do_command(self, cmd: Command) -> CommandResponse:
        if isinstance(cmd, InvalidCommand):
            return await super().do_command(cmd)
        return await self._faulty(_name(cmd), cmd.tag, partial(super().do_command, cmd))

    async def _faulty(self, moment: str, tag: bytes, do: Callable[[], Awaitable[CommandResponse]]) -> CommandResponse:
        fault = self._faults.take_at(Server.IMAP, moment)
        if fault is None:
            return await do()
        await self._pauses.sleep(fault.seconds)
        if fault.kind is FaultKind.DROP_BEFORE:
            self._drop()
        if fault.kind in _ANSWERS:
            return _ANSWERS[fault.kind](tag, fault.text.encode())
        response = await do()
        if fault.kind is FaultKind.DROP_AFTER:
            self._drop()
        return response

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
        faults: PendingFaults,
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
