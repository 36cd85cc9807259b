"""What went wrong inside Spark, in the words of whoever found out: Spark wraps them several times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from butlers.errors import ButlersError, ConfigurationError, InternalError

_OURS = re.compile(r"butlers\.errors\.(\w+): (.+)")
_NAMED = re.compile(r"\[[A-Z][A-Z_.]{4,}\][^\n]*")
_UNREADABLE = re.compile(r"while reading file (?:file:)?(?://)?(\S+?\.parquet)")
_GONE = "the file was removed while the job ran (compaction, retention); run it again, or give them more grace"


class ReportedError(ConfigurationError):
    """A configuration error that was raised in another process: its text is all that arrived."""

    def __init__(self, message: str) -> None:
        super(ConfigurationError, self).__init__(message)
        self.problem, self.source, self.key, self.remedy = message, "lake", "", ""


@contextmanager
def explaining() -> Iterator[None]:
    """A block whose failures in Spark leave it as ours."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise explained(error) from error


def reported(said: str) -> ButlersError | None:
    """What our own code said on an executor, or the file that Spark could not read."""
    if ours := _OURS.findall(said):
        kind, message = ours[-1]
        return ReportedError(message) if kind == ConfigurationError.__name__ else InternalError(message)
    if unreadable := _UNREADABLE.search(said):
        remedy = _GONE if "NOT_EXIST" in said else "the file cannot be read; restore it from a backup"
        return InternalError(f"{unreadable[1]}: {remedy}")
    return None


def explained(error: BaseException) -> ButlersError:
    said = str(error)
    if (told := reported(said)) is not None:
        return told
    named = next((line for line in _NAMED.findall(said) if "[STREAM_FAILED]" not in line), None)
    return InternalError(f"Spark failed: {named or next(iter(said.strip().splitlines()), type(error).__name__)}")
