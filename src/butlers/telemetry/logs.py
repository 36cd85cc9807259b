"""Structured logs: one JSON object per line, an action and ids, never a payload.

    log = get_logger("butlers.switchboard", butler="switchboard")
    log.info("ingest accepted", request_id=request_id, dedupe_action="new")

    {"ts":"2026-01-01T00:00:00.000Z","level":"info","logger":"butlers.switchboard",
     "event":"ingest accepted","butler":"switchboard","request_id":"...","dedupe_action":"new"}

Three things keep content and secrets out:

1. The names of fields are a fixed list (`log_fields`); another name raises `ValueError`.
2. A text value that contains a blank or is long is not an id or a code, so it is withheld.
3. Exceptions are logged as type, frames and, where the words are our own, message. What a library says quotes values,
   and so does what we say of a caller's input (`ValidationError`): those messages are left out.

Records of libraries (uvicorn, httpx2, mcp, asyncio) go through the same formatter: first line only, cut, and scrubbed
by `Redaction`; below INFO they are dropped, because that is where libraries print what they carry.

A warning or an error that says the same again is held back for ten minutes and counted (`repeats`); the file is renamed
when it is large (`log_file`).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from logging.handlers import WatchedFileHandler
from pathlib import Path, PurePath
from traceback import walk_tb
from typing import IO, Any
from uuid import UUID

from pydantic_core import PydanticSerializationError, to_json

from butlers.clock import SystemClock
from butlers.errors import ButlersError, ClassifiedError, ValidationError
from butlers.telemetry.log_fields import FIELDS, NUMBERS
from butlers.telemetry.redaction import Redaction

QUIET_S = 600.0  # a warning or an error that says the same again is written once in this time
_REMEMBERED = 1_000  # different lines
_FIELDS_KEY = "butlers_fields"
_SPACE = re.compile(r"\s")
_LONGEST_VALUE = 200
_LONGEST_MESSAGE = 300
_DEEPEST_CAUSE = 5
_DEEPEST_FRAMES = 20
_WORDS = 1_000
_USUAL = frozenset({str, int, UUID, type(None)})  # looked up faster than the whole list is gone through
_CHATTY = frozenset({"httpx2", "httpcore2", "mcp"})
_WITH_OWN_HANDLERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "fastapi")
# What handlers of others (a test's, a debugger's) may ask a record for.
_NOWHERE: Mapping[str, Any] = vars(logging.LogRecord("", 0, "", 0, "", None, None))
_PLAIN_REDACTION = Redaction()


class RotatingFile(WatchedFileHandler):
    def __init__(self, path: Path, *, max_bytes: int, keep: int) -> None:
        super().__init__(path, encoding="utf-8")
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep  # old files, beside the one that is written

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):  # a file that cannot be put aside is written to all the same
            if self.stream is not None and os.fstat(self.stream.fileno()).st_size >= self._max_bytes:
                self._rotate()
        super().emit(record)  # which opens the file anew when the name belongs to another one

    def _rotate(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._path.stat().st_size < self._max_bytes:
                return  # another process was quicker
            for number in range(self._keep, 0, -1):
                younger = self._old(number - 1) if number > 1 else self._path
                with suppress(FileNotFoundError):
                    younger.replace(self._old(number))
        finally:
            os.close(folder)

    def _old(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class Repeats:
    """A filter that lets a failure's line pass when it begins and rarely while it lasts.

    `same` gives what two lines are compared by. A line that passes after some were held back says how many
    (`record.repeats`).
    """

    def __init__(self, same: Callable[[logging.LogRecord], Hashable], *, quiet_s: float = QUIET_S) -> None:
        self._same = same
        self._quiet_s = quiet_s
        self._written: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()  # when, and held back since

    def __call__(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key = self._same(record)
        written_at, held_back = self._written.pop(key, (None, 0))
        if written_at is not None and 0 <= record.created - written_at < self._quiet_s:
            self._written[key] = (written_at, held_back + 1)
            return False
        self._written[key] = (record.created, 0)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)
        record.repeats = held_back
        return True


Field = str | int | float | bool | UUID | Enum | datetime | None


class Logger:
    """Logs fixed events with listed fields; `bind` gives fields to every later line."""

    __slots__ = ("_bound", "_logger")

    def __init__(self, logger: logging.Logger, bound: Mapping[str, Field]) -> None:
        self._logger = logger
        self._bound = _checked(bound)

    def bind(self, **fields: Field) -> Logger:
        return Logger(self._logger, {**self._bound, **fields})

    def debug(self, event: str, **fields: Field) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Field) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, *, error: BaseException | None = None, **fields: Field) -> None:
        self._log(logging.WARNING, event, fields, error)

    def error(self, event: str, *, error: BaseException | None = None, **fields: Field) -> None:
        self._log(logging.ERROR, event, fields, error)

    def _log(self, level: int, event: str, fields: Mapping[str, Field], error: BaseException | None = None) -> None:
        # Checked before the level is looked at: a wrong name must fail in a test that logs at WARNING, too.
        checked = _checked(fields)
        if self._logger.isEnabledFor(level):
            self._logger.handle(_Line(self._logger.name, level, event, {**self._bound, **checked}, error))


class _Line(logging.LogRecord):
    """A record of ours. It does not look for its caller, thread, task and process, which no line shows: that would be
    half of what a line costs, and accepting a message writes one.
    """

    def __init__(
        self, name: str, level: int, event: str, fields: Mapping[str, Field], error: BaseException | None
    ) -> None:
        self.__dict__ |= _NOWHERE
        self.name, self.levelno, self.levelname = name, level, logging.getLevelName(level)
        self.msg = event
        self.exc_info = (type(error), error, error.__traceback__) if error else None
        self.created = SystemClock().now().timestamp()
        self.butlers_fields = fields


def get_logger(name: str, **bound: Field) -> Logger:
    return Logger(logging.getLogger(name), bound)


def configure_logging(
    target: IO[str] | Path,
    level: int | str = logging.INFO,
    *,
    secrets: Iterable[str] = (),
    max_bytes: int = 10 << 20,  # of the file, before it is renamed
    keep: int = 5,  # renamed ones
) -> logging.Handler:
    """Send every record of the process to `target` as JSON lines; calling it again replaces the first handler."""
    handler = _handler(target, max_bytes, keep)
    handler.setFormatter(JsonLines(Redaction(secrets)))
    handler.addFilter(_is_ours_or_important)
    handler.addFilter(Repeats(_repeat_key))
    root = logging.getLogger()
    for previous in [h for h in root.handlers if isinstance(h.formatter, JsonLines)]:
        root.removeHandler(previous)
        previous.close()
    root.addHandler(handler)
    root.setLevel(level)
    if root.level > logging.DEBUG:
        handler.addFilter(_is_no_chatter)
    for name in _WITH_OWN_HANDLERS:
        _route_to_root(logging.getLogger(name))
    logging.captureWarnings(capture=True)
    return handler


class JsonLines(logging.Formatter):
    """One record, one line, in a fixed order of keys."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction
        self._text = lru_cache(_WORDS)(self._harmless)  # most values are one of a few words

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": self._event(record),
        }
        line |= {name: self._value(value) for name, value in _fields(record).items()}
        if repeats := getattr(record, "repeats", 0):
            line["repeats"] = repeats
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            expected = record.levelno < logging.ERROR and isinstance(error, ClassifiedError)
            line["error"] = describe_exception(error, redact=self._redaction, frames=not expected)
        try:
            return to_json(line, inf_nan_mode="constants").decode()
        except PydanticSerializationError:  # half of a character
            return json.dumps(line)

    def _event(self, record: logging.LogRecord) -> str:
        if hasattr(record, _FIELDS_KEY):  # a fixed text of ours
            return str(record.msg)[:_LONGEST_MESSAGE]
        try:
            message = record.getMessage()
        except Exception:
            # Left to itself, logging would print the arguments to stderr.
            return "a record that cannot be formatted"
        return self._redaction.first_line(message, _LONGEST_MESSAGE)

    def _value(self, value: Field) -> str | int | float | bool | None:
        if isinstance(value, str):
            return self._text(value.value if isinstance(value, Enum) else value)
        if isinstance(value, UUID):
            return str(value)
        if isinstance(value, datetime):
            return value.isoformat()
        return self._text(str(value.value)) if isinstance(value, Enum) else value

    def _harmless(self, text: str) -> str:
        if len(text) > _LONGEST_VALUE or _SPACE.search(text):
            return f"[withheld: {len(text)} characters]"
        return self._redaction(text)


def describe_exception(
    error: BaseException, depth: int = 0, *, redact: Redaction = _PLAIN_REDACTION, frames: bool = True
) -> dict[str, Any]:
    """Types, messages that are our own words, and places, outermost first."""
    described: dict[str, Any] = {"type": _type_name(error)}
    if words := own_words(error):
        described["message"] = redact.first_line(words, _LONGEST_MESSAGE)
    if frames:
        described["frames"] = _places(error)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and depth < _DEEPEST_CAUSE:
        described["cause"] = describe_exception(cause, depth + 1, redact=redact, frames=frames)
    if isinstance(error, BaseExceptionGroup) and depth < _DEEPEST_CAUSE:
        members = error.exceptions[:_DEEPEST_CAUSE]
        described["errors"] = [describe_exception(e, depth + 1, redact=redact, frames=frames) for e in members]
    return described


def own_words(error: BaseException) -> str:
    """What may be said of an error: our own sentence, the system's fixed one, or PostgreSQL's code and names."""
    if isinstance(error, ButlersError):
        return "" if isinstance(error, ValidationError) else str(error)
    if isinstance(error, OSError):
        return error.strerror or ""
    names = (getattr(error, name, None) for name in ("sqlstate", "table_name", "constraint_name"))
    return " ".join(name for name in names if isinstance(name, str))


def _places(error: BaseException) -> list[str]:
    found = [
        f"{_short(frame.f_code.co_filename)}:{line} {frame.f_code.co_name}"
        for frame, line in walk_tb(error.__traceback__)
    ]
    return found[-_DEEPEST_FRAMES:]


def _checked(fields: Mapping[str, Field]) -> dict[str, Field]:
    if not fields.keys() <= FIELDS:
        raise ValueError(f"not a log field: {', '.join(sorted(fields.keys() - FIELDS))}")
    for name, value in fields.items():
        if type(value) not in _USUAL and not isinstance(value, str | int | float | UUID | Enum | datetime | None):
            raise ValueError(f"log field {name} cannot be a {type(value).__name__}")
    return dict(fields)


def _fields(record: logging.LogRecord) -> dict[str, Field]:
    fields: dict[str, Field] = getattr(record, _FIELDS_KEY, {})
    return fields


def _repeat_key(record: logging.LogRecord) -> Hashable:
    """What makes two lines the same: everything but numbers, which tell how often or how long."""
    fields = tuple((name, str(value)) for name, value in sorted(_fields(record).items()) if name not in NUMBERS)
    error = record.exc_info[1] if record.exc_info else None
    cause = (_type_name(error), own_words(error)) if error is not None else None
    return (record.name, record.levelno, str(record.msg), str(record.args), fields, cause)


def _is_ours_or_important(record: logging.LogRecord) -> bool:
    return hasattr(record, _FIELDS_KEY) or record.levelno >= logging.INFO


def _is_no_chatter(record: logging.LogRecord) -> bool:
    """One line per HTTP request is what a poll writes all day."""
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] not in _CHATTY


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _short(filename: str) -> str:
    return "/".join(PurePath(filename).parts[-3:])


def _handler(target: IO[str] | Path, max_bytes: int, keep: int) -> logging.Handler:
    if isinstance(target, Path):
        target.parent.mkdir(parents=True, exist_ok=True)
        return RotatingFile(target, max_bytes=max_bytes, keep=keep)
    return logging.StreamHandler(target)


def _route_to_root(logger: logging.Logger) -> None:
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.propagate = True
