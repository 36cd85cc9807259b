"""Addresses of databases (`postgresql://user:password@host:port/name`), handled so that no password gets out."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from butlers.errors import ConfigurationError

SOURCE = "DATABASE_URL"

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:]*)(:\d+)?")


def describe_address(dsn: str) -> str:
    """Hosts, ports and database of an address: what a message may show."""
    parts = _split(dsn)
    hosts = parts.netloc.rpartition("@")[2] or parse_qs(parts.query).get("host", ["localhost"])[0]
    return f"{hosts}/{unquote(parts.path.lstrip('/'))}"


def with_database(dsn: str, name: str) -> str:
    """The address of another database on the same server."""
    parts = _split(dsn)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}/{quote(name, safe='')}{query}"


def _split(dsn: str) -> SplitResult:
    try:
        parts = urlsplit(dsn)
    except ValueError:
        raise invalid_address() from None
    hosts = parts.netloc.rpartition("@")[2].split(",")
    # An "@" after the hosts means that the password holds a "/", "?" or "#", and that we would show a part of it.
    misread = "@" in parts.path + parts.query + parts.fragment or not all(map(_HOST.fullmatch, hosts))
    if misread or parts.scheme not in ("postgresql", "postgres"):
        raise invalid_address()
    return parts


def database_of(dsn: str) -> str | None:
    """The database an address names, if it names one."""
    describe_address(dsn)
    return unquote(urlsplit(dsn).path.lstrip("/")) or None


def invalid_address() -> ConfigurationError:
    return ConfigurationError(
        "the address cannot be read",
        source=SOURCE,
        key="address",
        remedy="write postgresql://user:password@host:port/database, special characters percent-encoded",
    )
