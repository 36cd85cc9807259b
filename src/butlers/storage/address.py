"""Addresses of databases (`postgresql://user:password@host:port/name`), and what can be wrong between us and a server,
each with the command or change that mends it.

The drivers (asyncpg here, ADBC in the pipeline) say it in their own ways; what the operator reads is the same. Nothing
here shows a password: addresses are described by host, port, database and role.
"""

from __future__ import annotations

import getpass
import re
import ssl
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from butlers.errors import ConfigurationError, ServiceDown

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


class DatabaseMissing(ConfigurationError):
    """The server answers and does not know the database."""


def missing_database(dsn: str) -> DatabaseMissing:
    name, role = _quoted(database_of(dsn) or "butlers"), _quoted(role_of(dsn))
    return DatabaseMissing(
        "there is no such database",
        source=SOURCE,
        key=describe_address(dsn),
        remedy=f"run as a superuser: CREATE DATABASE {name} OWNER {role}; or name another database",
    )


def wrong_password(dsn: str) -> ConfigurationError:
    return _wrong(
        dsn,
        f"the server refuses this user or password (role {role_of(dsn)})",
        "correct the address; special characters of a password are percent-encoded",
    )


def not_let_in(dsn: str, *, wants_encryption: bool) -> ConfigurationError:
    if wants_encryption:
        problem = "the server lets this role in over an encrypted connection only, or not at all"
        return _wrong(dsn, problem, "add sslmode=require to the address, or a line for it to the server's pg_hba.conf")
    problem = f"the server refuses this user or password (role {role_of(dsn)} is not let in from here)"
    return _wrong(dsn, problem, "create the role, or add a line for it to the server's pg_hba.conf")


def too_many_connections(dsn: str) -> ServiceDown:
    return ServiceDown(
        "all connections that the server allows are taken",
        source=SOURCE,
        key=describe_address(dsn),
        remedy="raise max_connections of the server or the role's limit, end other clients, or lower database_pool",
    )


def untrusted_certificate(dsn: str, why: str) -> ConfigurationError:
    return _wrong(
        dsn,
        f"the server's certificate is not trusted ({why})",
        "name the certificate of its authority with sslrootcert=FILE and the host as the certificate has it, "
        "or encrypt without this check with sslmode=require",
    )


def no_encryption(dsn: str) -> ConfigurationError:
    return _wrong(
        dsn,
        f"the server does not offer TLS, and sslmode={parameter_of(dsn, 'sslmode') or 'require'} demands it",
        "switch TLS on at the server, or use sslmode=disable on a network that you trust",
    )


def unknown_parameter(dsn: str) -> ConfigurationError:
    return _wrong(
        dsn,
        "the server does not take one of the address's parameters",
        "use only sslmode, sslrootcert, sslcert, sslkey, host, port, user, password, dbname and settings of the server",
    )


def unreachable(dsn: str, problem: str) -> ServiceDown:
    return ServiceDown(
        problem,
        source=SOURCE,
        key=describe_address(dsn),
        remedy=f"start the server or correct the address; unset {SOURCE} to use the embedded server",
    )


def may_not_create_database(role: str, name: str, address: str) -> ConfigurationError:
    make, allow = f"CREATE DATABASE {_quoted(name)} OWNER {_quoted(role)}", f"ALTER ROLE {_quoted(role)} CREATEDB"
    return ConfigurationError(
        f"the database {name} does not exist and this user may not create it (role {role})",
        source=SOURCE,
        key=address,
        remedy=f"run as a superuser: {make}; or: {allow}",
    )


def may_not_create(role: str, database: str) -> ConfigurationError:
    grant = f"GRANT CREATE ON DATABASE {_quoted(database)} TO {_quoted(role)}"
    return ConfigurationError(
        f"the role {role} may not create schemas in the database {database}",
        source=SOURCE,
        key=database,
        remedy=f"run as the owner of the database: {grant}",
    )


def may_not_change(role: str, database: str, schema: str) -> ConfigurationError:
    owner = f"ALTER SCHEMA {_quoted(schema)} OWNER TO {_quoted(role)}"
    return ConfigurationError(
        f"the role {role} may not change the schema {schema} in the database {database}, which another role made",
        source=SOURCE,
        key=database,
        remedy=f"use the role that made it, or give it away, and its tables likewise: {owner}",
    )


def role_of(dsn: str) -> str:
    """The role an address names; the name of the operating system's user otherwise."""
    user = urlsplit(dsn).netloc.rpartition("@")[0].partition(":")[0]
    return unquote(user) or parameter_of(dsn, "user") or getpass.getuser()


def _quoted(name: str) -> str:
    """For a statement that a person is to run."""
    return '"' + name.replace('"', '""') + '"'


def _wrong(dsn: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, source=SOURCE, key=describe_address(dsn), remedy=remedy)
