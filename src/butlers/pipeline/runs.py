"""The record of runs: every run has a row from its start on, and no row says "running" of a process that died.

    running --> succeeded | needs_attention (ran well, found something wrong) | failed     by the run itself
            \\-> died                                                                    by whoever looks next

The process of a run holds an advisory lock named after it. The server frees the lock when the connection ends, however
it ends; so a running row whose lock can be had belongs to nobody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from adbc_driver_manager.dbapi import Cursor

from butlers.pipeline.connection import autocommitting, fetch_value
from butlers.pipeline.job import Window
from butlers.pipeline.schema import MIGRATIONS, SCHEMA
from butlers.storage.database import Database
from butlers.storage.migrations import migrate
from butlers.storage.queries import Queries

RUNNING, SUCCEEDED, NEEDS_ATTENTION, FAILED, DIED = "running", "succeeded", "needs_attention", "failed", "died"
_DOCUMENTS = ("arguments", "details", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is known at the start."""

    run_id: UUID
    job: str
    window: Window
    arguments: Mapping[str, str] = field(default_factory=dict)
    master: str
    host: str
    pid: int
    started_at: datetime

    def describe(self) -> dict[str, Any]:
        described = _described(self)
        window: Window = described.pop("window")
        ends = {"window_start": window.start.isoformat(), "window_end": window.end.isoformat()}
        return described | ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    outcome: str
    ended_at: datetime
    duration_ms: int
    rows_in: int | None = None
    rows_out: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None

    def describe(self) -> dict[str, Any]:
        return _described(self)


def _described(value: Run | Ending) -> dict[str, Any]:
    """The fields as JSON has them."""
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, UUID) else value


async def prepare(dsn: str) -> None:
    """The pipeline's own tables, made or brought up to date."""
    async with await Database.connect(dsn, max_size=1, application_name="butlers pipeline") as database:
        await migrate(database, MIGRATIONS)


class OpenRun:
    """A run that has begun, and the connection that says it lives."""

    def __init__(self, cursor: Cursor, queries: Queries, run: Run) -> None:
        self._cursor = cursor
        self._queries = queries
        self._run = run
        self.app_id = ""

    def name_application(self, app_id: str) -> None:
        self.app_id = app_id
        self._cursor.execute(self._queries.name_application, (str(self._run.run_id), app_id))

    def finish(self, ending: Ending) -> None:
        document = ending.describe() | {"run_id": str(self._run.run_id)}
        self._cursor.execute(self._queries.finish, (json.dumps(document),))


class Runs:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._queries = Queries.load("butlers.pipeline", schema=SCHEMA)

    @contextmanager
    def begin(self, run: Run) -> Iterator[OpenRun]:
        with autocommitting(self._dsn) as cursor:
            # The lock comes first: a row without one would count as dead.
            fetch_value(cursor, self._queries.hold, (str(run.run_id),))
            cursor.execute(self._queries.begin, (json.dumps(run.describe()),))
            yield OpenRun(cursor, self._queries, run)

    def recent(self, *, now: datetime, limit: int, run_id: UUID | None = None) -> list[dict[str, Any]]:
        """The latest runs first; those that died since somebody looked are marked on the way."""
        with autocommitting(self._dsn) as cursor:
            if not fetch_value(cursor, self._queries.prepared):
                return []
            cursor.execute(self._queries.bury, (now,))
            cursor.execute(self._queries.recent, (str(run_id or ""), limit))
            names = [str(column[0]) for column in cursor.description or ()]
            return [_shown(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    documents = {name: json.loads(row[name]) if row[name] else None for name in _DOCUMENTS}
    return {name: _plain(value) for name, value in row.items()} | documents
