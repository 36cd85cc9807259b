"""The first contact with a server: wait for it, check it, and say clearly what is wrong with it."""

from __future__ import annotations

import ssl
from typing import Any, TypeAlias

import asyncpg

from butlers.clock import Clock, SystemClock
from butlers.errors import ConfigurationError, ServiceDown
from butlers.storage import refusals
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
