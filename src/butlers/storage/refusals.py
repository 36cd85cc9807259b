"""What can be wrong between us and a PostgreSQL server, each with the command or change that mends it.

The drivers (asyncpg here, ADBC in the pipeline) say it in their own ways; what the operator reads is the same. Nothing
here shows a password: addresses are described by host, port, database and role.
"""

from __future__ import annotations

import getpass
from urllib.parse import unquote, urlsplit

from butlers.errors import ConfigurationError, ServiceDown
from butlers.storage.address import SOURCE, database_of, describe_address, parameter_of


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
