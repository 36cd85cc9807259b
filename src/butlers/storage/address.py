"""Addresses of databases (`postgresql://user:password@host:port/name`), handled so that no password gets out."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from butlers.errors import ConfigurationError

SOURCE = "DATABASE_URL"
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:]*)(:\d{1,9})?")
_HIGHEST_PORT = 65_535


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
    misread = "@" in parts.path + parts.query + parts.fragment or not all(map(_is_host, hosts))
    if misread or parts.scheme not in ("postgresql", "postgres"):
        raise invalid_address()
    return parts


def _is_host(text: str) -> bool:
    matched = _HOST.fullmatch(text)
    return matched is not None and int((matched[2] or ":0")[1:]) <= _HIGHEST_PORT


def database_of(dsn: str) -> str | None:
    """The database an address names, if it names one."""
    describe_address(dsn)
    return unquote(urlsplit(dsn).path.lstrip("/")) or None


def parameter_of(dsn: str, name: str) -> str | None:
    """The value of one parameter behind the address's question mark."""
    return parse_qs(_split(dsn).query).get(name, [None])[-1]


def check_encryption(dsn: str) -> None:
    """Refuse an `sslmode` or `sslrootcert` that no driver could honour, before one of them guesses."""
    mode, root = parameter_of(dsn, "sslmode"), parameter_of(dsn, "sslrootcert")
    if mode is not None and mode not in SSL_MODES:
        raise _encryption("sslmode", "there is no such sslmode", f"use one of {', '.join(SSL_MODES)}")
    if root is None and mode in ("verify-ca", "verify-full"):
        root = str(Path.home() / ".postgresql" / "root.crt")  # where both drivers look
    if root is None or mode == "disable":
        return
    try:
        ssl.create_default_context(cafile=root)
    except ssl.SSLError:
        raise _encryption("sslrootcert", f"{root} holds no certificate", "name a file in PEM form") from None
    except OSError as error:
        problem = f"{root} cannot be read: {error.strerror or 'no such file'}"
        remedy = "name the file with the certificate of the server's authority: sslrootcert=FILE"
        raise _encryption("sslrootcert", problem, remedy) from None


def _encryption(key: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, source=SOURCE, key=key, remedy=remedy)


def invalid_address() -> ConfigurationError:
    return ConfigurationError(
        "the address cannot be read",
        source=SOURCE,
        key="address",
        remedy="write postgresql://user:password@host:port/database, special characters percent-encoded",
    )
