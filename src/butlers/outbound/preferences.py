"""What people, organizations and the system want: read through a cache, changed under a lock.

A document holds more than is read here; every change keeps the fields that are not ours. It is parsed by the models of
`documents.py` before it is stored, so what cannot be read is never written.

    PreferenceCache   texts as stored, remembered for an hour until they change (`changes.py`)
    PreferenceStore   lock the row -> change -> check -> store, with who did it; then `on_change`
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pydantic

from butlers.clock import Clock
from butlers.contracts.envelope import MAX_IDENTITY, Identity, Value, invalid
from butlers.errors import ValidationError
from butlers.outbound import SCHEMA
from butlers.outbound.change_cache import ChangeCache
from butlers.outbound.change_log import ChangeLog
from butlers.outbound.changes import Change, ChangeListener
from butlers.outbound.documents import (
    PreferenceDocument,
    QuietHoursDocument,
    SystemDefaultsDocument,
    parse_document,
)
from butlers.outbound.mutes import check_mute_end
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.outbound")

SYSTEM_SCOPE = "system"  # the key of the system's own defaults
PREFERENCE_TTL_S = 3600.0
LONGEST_DOCUMENT = 65_536  # bytes as JSON
LONGEST_EVENT = MAX_IDENTITY  # characters: every event that a message can carry can be refused
MOST_MUTES = 32
_MOST_REMEMBERED = 20_000
_CHANNEL = re.compile(r"[a-z][a-z0-9_]{0,63}")
_KEY = tuple[str, str]  # table, subject or scope

Edit = Callable[[dict[str, Any]], None]  # changes the document that it is given


def organization_scope(organization_id: str) -> str:
    """The key of an organization's defaults."""
    return f"organization:{organization_id}"


class PreferenceCache:
    """Documents as they are stored; None for who has stored nothing."""

    def __init__(self, *, database: Database, clock: Clock, listener: ChangeListener, schema: str = SCHEMA) -> None:
        self._database = database
        self._queries = Queries.load("butlers.outbound", schema=schema)
        self._remembered: ChangeCache[_KEY, str | None] = ChangeCache(
            ttl_s=PREFERENCE_TTL_S,
            most=_MOST_REMEMBERED,
            clock=clock,
            group_of=" ".join,
            is_trusted=listener.is_live,
        )
        listener.subscribe(self.on_change)

    async def documents(self, ids: Iterable[str]) -> Mapping[str, str | None]:
        """The documents of people; one read for all that are not remembered."""
        return await self._texts("preferences", ids)

    async def organization(self, organization_id: str) -> str | None:
        scope = organization_scope(organization_id)
        return (await self._texts("defaults", [scope]))[scope]

    async def system(self) -> str | None:
        return (await self._texts("defaults", [SYSTEM_SCOPE]))[SYSTEM_SCOPE]

    def on_change(self, change: Change | None) -> None:
        if change is None or (change.keys is None and change.table in ("preferences", "defaults")):
            self._remembered.clear()
        elif change.table in ("preferences", "defaults"):
            self._remembered.forget(f"{change.table} {key}" for key in change.keys or ())

    async def _texts(self, table: str, names: Iterable[str]) -> Mapping[str, str | None]:
        query = self._queries.preferences_of if table == "preferences" else self._queries.defaults_of

        async def read(keys: Sequence[_KEY]) -> Mapping[_KEY, str | None]:
            rows = await self._database.fetch(query, [name for _, name in keys])
            found = {row[0]: row["document"] for row in rows}
            return {key: found.get(key[1]) for key in keys}

        known = await self._remembered.get_many(((table, name) for name in names), read)
        return {name: text for (_, name), text in known.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedBy:
    """Who changes something, as the history shows it, such as operator:anna or telegram:4711."""

    name: str
    change_id: UUID | None = None  # of the request that asks for it: under one id a change is made once


async def _no_one_waits(_subject_id: str) -> None:
    """Until messages can be held, a change releases none."""


class PreferenceStore:
    """Changes what people want. Every method stores a valid document and records who changed it, or raises."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        log: ChangeLog,
        listener: ChangeListener,
        on_change: Callable[[str], Awaitable[None]] = _no_one_waits,  # a person's preferences are others now
        schema: str = SCHEMA,
    ) -> None:
        self.on_change = on_change
        self._database = database
        self._clock = clock
        self._log = log
        self._listener = listener
        self._queries = Queries.load("butlers.outbound", schema=schema)

    async def set_matrix_cell(
        self, subject_id: str, event: str, channel: str, opinion: bool | None, *, by: ChangedBy
    ) -> None:
        """True: by this channel, please; False: never; None: no opinion."""
        check_event(event)
        if _CHANNEL.fullmatch(channel) is None:
            raise invalid("channel", "must be the name of a channel")

        def edit(document: dict[str, Any]) -> None:
            matrix = _table(_table(document, "notifications"), "matrix")
            row = _table(matrix, event)
            if opinion is None:
                row.pop(channel, None)
            else:
                row[channel] = opinion
            if not row:
                del matrix[event]

        await self._edit(subject_id, edit, "set", {"event": event, "channel": channel, "opinion": opinion}, by)

    async def set_quiet_hours(self, subject_id: str, windows: Sequence[QuietHoursDocument], *, by: ChangedBy) -> None:
        """All quiet hours anew; none removes them."""
        written = [window.model_dump(mode="json") for window in windows]

        def edit(document: dict[str, Any]) -> None:
            document.pop("quietHours", None)
            if written:
                document["quietHours"] = written

        await self._edit(subject_id, edit, "quiet_hours", {"quiet_hours": written}, by)

    async def mute(self, subject_id: str, until: datetime, event: str | None = None, *, by: ChangedBy) -> datetime:
        """Write nothing before that moment, or nothing about one event; a later mute of the same takes its place."""
        now = self._clock.now()
        until = check_mute_end(until, now=now)
        mute = {"until": until.isoformat()} | ({"event": check_event(event)} if event is not None else {})

        def edit(document: dict[str, Any]) -> None:
            others = [one for one in _mutes(document) if _is_ahead(one, now) and one.get("event") != event]
            if len(others) >= MOST_MUTES:
                raise invalid("event", f"at most {MOST_MUTES} mutes can hold at one time")
            document["mutes"] = [*others, mute]

        await self._edit(subject_id, edit, "mute", mute, by)
        return until

    async def unmute(self, subject_id: str, *, by: ChangedBy) -> None:
        """End every mute."""
        await self._edit(subject_id, lambda document: document.pop("mutes", None), "unmute", {}, by)

    async def replace(self, subject_id: str, document: str, *, by: ChangedBy) -> None:
        """The whole document anew, whatever was stored."""
        _check_size(document)
        parsed, now = parse_document(PreferenceDocument, document, kind="preferences"), self._clock.now()
        _check_mutes(parsed, now)
        async with self._database.transaction() as connection:
            await self._lock(connection, subject_id, now)
            if await self._is_new(connection, subject_id, "replace", by=by, now=now):
                await connection.execute(self._queries.set_preferences, subject_id, document, now)
        await self._changed("preferences", subject_id)

    async def replace_organization(self, organization_id: str, document: str, *, by: ChangedBy) -> None:
        await self._replace_defaults(organization_scope(organization_id), document, PreferenceDocument, by)

    async def replace_system(self, document: str, *, by: ChangedBy) -> None:
        await self._replace_defaults(SYSTEM_SCOPE, document, SystemDefaultsDocument, by)

    async def _replace_defaults(
        self, scope: str, document: str, model: type[PreferenceDocument], by: ChangedBy
    ) -> None:
        _check_size(document)
        if parse_document(model, document, kind="defaults").mutes:
            raise invalid("mutes", "only a person can be muted")
        now = self._clock.now()
        async with self._database.transaction() as connection:
            if await self._is_new(connection, scope, "replace", by=by, now=now):
                await connection.execute(self._queries.set_defaults, scope, document, now)
        self._listener.announce(Change(table="defaults", keys=(scope,)))

    async def _edit(self, subject_id: str, edit: Edit, action: str, details: Mapping[str, Any], by: ChangedBy) -> None:
        now = self._clock.now()
        async with self._database.transaction() as connection:
            stored = await self._lock(connection, subject_id, now)
            if await self._is_new(connection, subject_id, action, by=by, now=now, details=details):
                text = _edited(stored, edit)
                await connection.execute(self._queries.set_preferences, subject_id, text, now)
        await self._changed("preferences", subject_id)

    async def _lock(self, connection: Executor, subject_id: str, now: datetime) -> str:
        """What is stored. Every change takes this lock before it records itself, so that no two wait for each other."""
        await connection.execute(self._queries.ensure_preferences, subject_id, now)
        stored: str = await connection.fetchval(self._queries.lock_preferences, subject_id)
        return stored

    async def _is_new(
        self,
        connection: Executor,
        subject_id: str,
        action: str,
        *,
        by: ChangedBy,
        now: datetime,
        details: Mapping[str, Any] | None = None,
    ) -> bool:
        return await self._log.record(
            connection, subject_id, action, details or {}, changed_by=by.name, now=now, change_id=by.change_id
        )

    async def _changed(self, table: str, subject_id: str) -> None:
        self._listener.announce(Change(table=table, keys=(subject_id,)))
        try:
            await self.on_change(subject_id)
        except Exception as error:  # what is stored stays so; held messages leave when their own time has come
            log.error("a changed preference released no message", error=error)


class _Named(Value):
    event: Identity


def check_event(event: str) -> str:
    """The event itself if a message may carry it."""
    try:
        return _Named(event=event).event
    except pydantic.ValidationError:
        raise invalid("event", f"must be text of 1 to {LONGEST_EVENT} characters without NUL") from None


def _edited(stored: str, edit: Edit) -> str:
    document = json.loads(stored)
    if not isinstance(document, dict):
        raise _unreadable("is not a JSON object")
    edit(document)
    text = json.dumps(document)
    _check_size(text)
    try:
        parse_document(PreferenceDocument, text, kind="preferences")
    except ValidationError as error:
        if _is_readable(stored):
            raise
        raise _unreadable(error.message) from None
    return text


def _is_readable(stored: str) -> bool:
    try:
        parse_document(PreferenceDocument, stored, kind="preferences")
    except ValidationError:
        return False
    return True


def _unreadable(problem: str) -> ValidationError:
    return invalid("preferences", f"what is stored cannot be read, so it must be replaced as a whole: {problem}")


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    inner = document.setdefault(name, {})
    if not isinstance(inner, dict):
        raise _unreadable(f"{name} is not an object")
    return inner


def _mutes(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    mutes = document.get("mutes", [])
    if not isinstance(mutes, list):
        raise _unreadable("mutes is not a list")
    return [mute for mute in mutes if isinstance(mute, dict)]


def _check_mutes(document: PreferenceDocument, now: datetime) -> None:
    """A mute that has ended may stay: who reads a document and stores it anew need not clean it."""
    for place, mute in enumerate(document.mutes):
        if mute.until > now:
            check_mute_end(mute.until, now=now, field=f"mutes.{place}.until")


def _is_ahead(mute: Mapping[str, Any], now: datetime) -> bool:
    try:
        until = datetime.fromisoformat(str(mute.get("until")))
    except ValueError:
        return False
    return until.tzinfo is not None and until.astimezone(UTC) > now


def _check_size(text: str) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > LONGEST_DOCUMENT:
        raise invalid("document", f"must not be larger than {LONGEST_DOCUMENT} bytes")
