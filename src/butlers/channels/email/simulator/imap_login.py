"""Who may log in to the IMAP simulator, and the session that they get.

Login -> Identity -> Session -> Folders (`imap_folders.py`)
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from ssl import SSLContext
from typing import NoReturn

from proxyprotocol.noop import ProxyProtocolNoop
from pymap.backend.session import BaseSession
from pymap.concurrent import Subsystem
from pymap.config import BackendCapability, IMAPConfig
from pymap.exceptions import AuthorizationFailure, InvalidAuth, NotAllowedError
from pymap.interfaces.login import IdentityInterface, LoginInterface
from pymap.token import AllTokens
from pymap.user import UserMetadata
from pysasl import SASLAuth
from pysasl.creds.server import ServerCredentials
from pysasl.hashing import Cleartext
from pysasl.identity import ClearIdentity

from butlers.channels.email.simulator.imap_folders import Folders, Message
from butlers.channels.email.simulator.mailbox import canonical
from butlers.channels.email.simulator.store import MailStore


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
    """One login on one connection."""

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
    """Knows the passwords and hands out sessions."""

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
    """An account that proved its password."""

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
