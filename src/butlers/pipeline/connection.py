"""Connections of the pipeline to PostgreSQL: ADBC, so that rows are Arrow batches from the socket on.

Drivers and executors both come through here. What a driver says about an address may hold a part of its password, so
only the server's own words, which never do, are passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import adbc_driver_manager
from adbc_driver_manager.dbapi import Connection, Cursor
from adbc_driver_postgresql import dbapi  # type: ignore[import-untyped]

from butlers.errors import ConfigurationError, InternalError
from butlers.storage.address import SOURCE, describe_address

_PATIENCE_S = 10  # for a server that does not answer at all
_SERVER_SAID = re.compile(r"FATAL:\s+(.+)")


def connect(dsn: str, *, autocommit: bool = False) -> Connection:
    """A connection to a server that answers; a transaction is open unless `autocommit`."""
    address = describe_address(dsn)
    try:
        connection: Connection = dbapi.connect(_with_patience(dsn), autocommit=autocommit)
    except adbc_driver_manager.Error as error:
        raise _unusable(address, str(error)) from None
    return connection


@contextmanager
def transaction(dsn: str) -> Iterator[Cursor]:
    """One transaction on a connection of its own: committed at the end, undone by any error."""
    with connect(dsn) as connection, connection.cursor() as cursor:
        yield cursor
        connection.commit()


def refused(what: str, error: adbc_driver_manager.Error) -> InternalError:
    """A statement that the server does not take; the values in its text stay here."""
    return InternalError(f"{what}: the server refuses it (SQLSTATE {error.sqlstate or 'unknown'})")


def _with_patience(dsn: str) -> str:
    query = urlsplit(dsn).query
    if "connect_timeout" in parse_qs(query):
        return dsn
    return f"{dsn}{'&' if query else '?'}connect_timeout={_PATIENCE_S}"


def _unusable(address: str, said: str) -> ConfigurationError:
    if "does not exist" in said and "database" in said:
        return _wrong(address, "there is no such database", "create it, or name another one")
    if any(
        words in said for words in ("authentication failed", "no password supplied", 'role "', "no pg_hba.conf entry")
    ):
        return _wrong(address, "the server refuses this user or password", "correct the address")
    told = _SERVER_SAID.search(said)
    problem = f"the server answers: {told[1].strip()}" if told else "no server answers there"
    return _wrong(address, problem, "start the server, or correct the address")


def _wrong(address: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, source=SOURCE, key=address, remedy=remedy)
