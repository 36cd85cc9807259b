"""One PostgreSQL database behind a pool of connections, and the first contact with its server: wait for it, check it,
and say clearly what is wrong with it.

Two rules keep the pool cheap and safe:

- Queries name their schema; nobody relies on `search_path`.
- Nobody leaves state on a connection: no `SET` (only `SET LOCAL`), no session-level advisory lock, no `LISTEN`.
  Therefore a connection goes back without the driver's clean-up query, which saves a round trip per call. An open
  transaction is still rolled back.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeAlias, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from pydantic_core import from_json, to_json

from butlers.clock import Clock, SystemClock
from butlers.errors import ConfigurationError, ServiceDown, TargetUnavailable
from butlers.storage import address as refusals
from butlers.storage.address import SOURCE, check_encryption, describe_address, invalid_address, with_database
from butlers.storage.queries import quote_identifier

OLDEST_SERVER = 15  # major version
_ATTEMPT_TIMEOUT = 5.0  # seconds for one attempt to connect
_PAUSE = 0.1  # seconds between two attempts

# In quotes, because the driver's classes take parameters only in its stubs.
Connection: TypeAlias = "asyncpg.Connection[Any]"

DATABASE_AWAY: tuple[type[Exception], ...] = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection between the server's last word and its end
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
)
_NOT_YET = (
    OSError,
    TimeoutError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.PostgresConnectionError,  # it hangs up
)

Record = asyncpg.Record
# Whatever runs SQL: a connection, in the pool or outside.
Executor: TypeAlias = "Connection | PoolConnectionProxy[Record]"
Isolation = Literal["read_committed", "repeatable_read", "serializable"]

_JSONB_VERSION = b"\x01"  # first byte of the binary form
_CLOSE_TIMEOUT = 10.0  # seconds that running queries have when the pool closes


def is_away(error: BaseException) -> bool:
    """Whether the server, and not the statement or its values, is the trouble."""
    # The driver counts values it cannot encode among its interface errors; those are nobody's absence.
    return isinstance(error, DATABASE_AWAY) and not isinstance(error, ValueError)


async def open_connection(
    dsn: str,
    *,
    wait: float = 10.0,  # seconds to wait for a server that does not answer yet
    application_name: str = "butlers",
    clock: Clock | None = None,
) -> Connection:
    """One connection outside any pool, to a server that has been checked."""
    clock = clock or SystemClock()
    address = describe_address(dsn)
    check_encryption(dsn)
    deadline = clock.monotonic() + wait
    while True:
        try:
            connection = await _attempt(dsn, application_name)
        except _NOT_YET as error:
            if clock.monotonic() >= deadline:
                raise _unreachable(dsn, wait, error) from error
            await clock.sleep(_PAUSE)
        else:
            _check_version(connection, address)
            return connection


async def create_database_if_missing(dsn: str, name: str, *, wait: float = 10.0, clock: Clock | None = None) -> bool:
    """Make a database on the server an address points to; true when it was not there before."""
    try:
        connection = await open_connection(with_database(dsn, name), wait=wait, clock=clock)
    except refusals.DatabaseMissing:
        return await _create_database(with_database(dsn, "postgres"), name, wait=wait, clock=clock)
    await connection.close()
    return False


async def _attempt(dsn: str, application_name: str) -> Connection:
    settings = {"application_name": application_name}
    try:
        return await asyncpg.connect(dsn, timeout=_ATTEMPT_TIMEOUT, server_settings=settings)
    except (ssl.SSLError, ConnectionError) as error:
        if (refusal := _refused_encryption(dsn, error)) is None:
            raise
        raise refusal from error
    except asyncpg.PostgresError as error:
        if (refusal := _refused_login(dsn, error)) is None:
            raise
        raise refusal from error
    except (ValueError, asyncpg.InterfaceError):
        # The driver's text may quote a part of the address, and that part may be the password.
        raise invalid_address() from None


def _refused_encryption(dsn: str, error: Exception) -> ConfigurationError | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return refusals.untrusted_certificate(dsn, error.verify_message)
    if isinstance(error, ssl.SSLError):
        return refusals.untrusted_certificate(dsn, error.reason or "TLS failed")
    return refusals.no_encryption(dsn) if "rejected SSL upgrade" in str(error) else None


def _refused_login(dsn: str, error: asyncpg.PostgresError) -> ConfigurationError | None:
    match error:
        case asyncpg.InvalidCatalogNameError():
            return refusals.missing_database(dsn)
        case asyncpg.InvalidPasswordError():
            return refusals.wrong_password(dsn)
        case asyncpg.InvalidAuthorizationSpecificationError():
            return refusals.not_let_in(dsn, wants_encryption="no encryption" in str(error))
        case asyncpg.UndefinedObjectError() | asyncpg.CantChangeRuntimeParamError():
            return refusals.unknown_parameter(dsn)
    return None


async def _create_database(dsn: str, name: str, *, wait: float, clock: Clock | None) -> bool:
    connection = await open_connection(dsn, wait=wait, clock=clock)
    try:
        await connection.execute(f"create database {quote_identifier(name)}")
    except (asyncpg.DuplicateDatabaseError, asyncpg.UniqueViolationError):
        return False  # another process was faster
    except asyncpg.InsufficientPrivilegeError as error:
        raise refusals.may_not_create_database(refusals.role_of(dsn), name, describe_address(dsn)) from error
    finally:
        await connection.close()
    return True


def _check_version(connection: Connection, address: str) -> None:
    version = connection.get_server_version()
    if version.major < OLDEST_SERVER:
        connection.terminate()
        raise ConfigurationError(
            f"the server is PostgreSQL {version.major}",
            source=SOURCE,
            key=address,
            remedy=f"use PostgreSQL {OLDEST_SERVER} or newer, or unset {SOURCE} to use the embedded server",
        )


def _unreachable(dsn: str, wait: float, error: BaseException) -> ServiceDown:
    if isinstance(error, asyncpg.TooManyConnectionsError):
        return refusals.too_many_connections(dsn)
    return refusals.unreachable(dsn, f"no server answered within {wait:g} seconds ({type(error).__name__})")


class _StatelessConnection(asyncpg.Connection):
    def get_reset_query(self) -> str:
        return ""


@contextmanager
def _translated() -> Iterator[None]:
    """A server that is away is a passing fault of ours, not of whoever asked."""
    try:
        yield
    except DATABASE_AWAY as error:
        if not is_away(error):
            raise
        raise TargetUnavailable(f"the database is away ({type(error).__name__})", retry_after=1.0) from error


P = ParamSpec("P")
T = TypeVar("T")


def _translating(
    method: Callable[Concatenate[asyncpg.Pool[Record], P], Awaitable[T]],
) -> Callable[Concatenate[Database, P], Coroutine[Any, Any, T]]:
    async def call(self: Database, /, *values: P.args, **options: P.kwargs) -> T:
        with _translated():
            return await method(self._pool, *values, **options)

    return call


class Database:
    """A pool of connections to one database."""

    def __init__(self, pool: asyncpg.Pool[Record]) -> None:
        self._pool = pool

    @classmethod
    async def connect(
        cls,
        dsn: str,
        *,
        min_size: int = 1,
        max_size: int = 10,
        command_timeout: float = 60.0,  # seconds
        application_name: str = "butlers",
        wait: float = 10.0,  # seconds to wait for a server that does not answer yet
        clock: Clock | None = None,
    ) -> Self:
        """Wait for the server, check it, and open the pool."""
        first = await open_connection(dsn, wait=wait, application_name=application_name, clock=clock)
        await first.close()
        pool = await asyncpg.create_pool(
            dsn,
            min_size=min_size,
            max_size=max_size,
            command_timeout=command_timeout,
            server_settings={"application_name": application_name},
            connection_class=_StatelessConnection,
            init=speak_json,
        )
        return cls(pool)

    async def close(self) -> None:
        """Let running queries finish for a while, then cut them off."""
        try:
            await asyncio.wait_for(self._pool.close(), _CLOSE_TIMEOUT)
        except TimeoutError:
            self._pool.terminate()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Executor]:
        """A connection without a transaction."""
        with _translated():
            async with self._pool.acquire() as connection:
                yield connection

    @asynccontextmanager
    async def transaction(self, *, isolation: Isolation | None = None) -> AsyncIterator[Executor]:
        """A connection inside a transaction: committed at the end, rolled back on any error."""
        with _translated():
            async with self._pool.acquire() as connection, connection.transaction(isolation=isolation):
                yield connection

    fetch = _translating(asyncpg.Pool.fetch)
    fetchrow = _translating(asyncpg.Pool.fetchrow)
    fetchval = _translating(asyncpg.Pool.fetchval)
    execute = _translating(asyncpg.Pool.execute)
    executemany = _translating(asyncpg.Pool.executemany)  # all rows or none


async def speak_json(connection: Executor) -> None:
    """Let `json` and `jsonb` columns take and give Python values; in binary, because COPY knows nothing else."""
    await connection.set_type_codec("json", schema="pg_catalog", format="binary", encoder=to_json, decoder=from_json)
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        format="binary",
        encoder=lambda value: _JSONB_VERSION + to_json(value),
        decoder=lambda data: from_json(data[1:]),
    )
