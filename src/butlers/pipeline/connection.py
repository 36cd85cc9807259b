"""Connections of the pipeline to PostgreSQL: ADBC, so that rows are Arrow batches from the socket on.

Drivers and executors both come through here. What a driver says about an address may hold a part of its password, so
only the server's own words, which never do, are passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import adbc_driver_manager
from adbc_driver_manager.dbapi import Connection, Cursor
from adbc_driver_postgresql import dbapi  # type: ignore[import-untyped]

from butlers.errors import ConfigurationError, InternalError
from butlers.storage import address as refusals
from butlers.storage.address import check_encryption, describe_address

_PATIENCE_S = 10  # for a server that does not answer at all
_SERVER_MESSAGE = re.compile(r"FATAL:\s+(.+)")


def connect(dsn: str, *, autocommit: bool = False) -> Connection:
    """A connection to a server that answers; a transaction is open unless `autocommit`."""
    describe_address(dsn)
    check_encryption(dsn)
    try:
        connection: Connection = dbapi.connect(_with_patience(dsn), autocommit=autocommit)
    except adbc_driver_manager.Error as error:
        raise _unusable(dsn, str(error)) from None
    return connection


@contextmanager
def transaction(dsn: str) -> Iterator[Cursor]:
    """One transaction on a connection of its own: committed at the end, undone by any error."""
    with connect(dsn) as connection, connection.cursor() as cursor:
        yield cursor
        connection.commit()


@contextmanager
def autocommitting(dsn: str) -> Iterator[Cursor]:
    """A connection of its own on which each statement is a transaction."""
    with connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        yield cursor


def fetch_value(cursor: Cursor, query: str, parameters: Sequence[Any] = ()) -> Any:
    """The first value of the first row, None when there is no row."""
    cursor.execute(query, parameters or None)
    row = cursor.fetchone()
    return row[0] if row else None


def refused(what: str, error: adbc_driver_manager.Error) -> InternalError:
    """A statement that the server does not take; the values in its text stay here."""
    return InternalError(f"{what}: the server refuses it (SQLSTATE {error.sqlstate or 'unknown'})")


def _with_patience(dsn: str) -> str:
    query = urlsplit(dsn).query
    if "connect_timeout" in parse_qs(query):
        return dsn
    return f"{dsn.rstrip('?')}{'&' if query else '?'}connect_timeout={_PATIENCE_S}"


def _unusable(dsn: str, message: str) -> ConfigurationError:
    """What libpq says about a connection, in the words of `storage/address.py`."""
    if "does not exist" in message and "database" in message:
        return refusals.missing_database(dsn)
    if "authentication failed" in message or "no password supplied" in message:
        return refusals.wrong_password(dsn)
    if "certificate" in message:
        return refusals.untrusted_certificate(dsn, "certificate verify failed")
    if "does not support SSL" in message:
        return refusals.no_encryption(dsn)
    if "too many clients" in message or "too many connections" in message or "remaining connection slots" in message:
        return refusals.too_many_connections(dsn)
    if "pg_hba.conf" in message or 'role "' in message:
        return refusals.not_let_in(dsn, wants_encryption="no encryption" in message and "[local]" not in message)
    fatal = _SERVER_MESSAGE.search(message)
    return refusals.unreachable(dsn, f"the server answers: {fatal[1].strip()}" if fatal else "no server answers there")
