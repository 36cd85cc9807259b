"""Who may send and who may receive, by which channel.

A permission is `messages:{send|receive|*}:{channel|*}`; with a leading `!` it denies, and a denial wins over every
grant. Its holder is a subject: a person (the contact id as text), a butler or another caller by its name, or a role
(`role:<name>`). A grant and a role hold in one organization, or in all ('').

    PermissionGate       one decision: messages:{direction}:{channel}; remembered for 500 ms
      │
    EntitlementService   the permissions of subjects; a company may bring its own
      └─ StoredEntitlements    subject + its roles + everyone, from the tables; remembered for 300 s until they change
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from butlers.channels.channel import load
from butlers.clock import Clock
from butlers.contracts.envelope import MAX_IDENTITY, invalid
from butlers.errors import ConfigurationError
from butlers.outbound import SCHEMA
from butlers.outbound.change_cache import ChangeCache
from butlers.outbound.change_log import ChangeLog
from butlers.outbound.changes import Change, ChangeListener
from butlers.outbound.planning import Direction, check_permission_name, is_permitted, permission_name
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries

ROLE = "role:"  # how a subject begins that is a role
EVERYONE = "role:everyone"
DENIAL = "!"
PERMISSION_TTL_S = 300.0
DECISION_TTL_S = 0.5
MOST_SUBJECTS = 1_001  # of one call: a sender and a thousand recipients
_MOST_REMEMBERED = 50_000
_LISTED_MEMBERSHIPS = 500
_ROLE_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")

_Subject = tuple[str, str]  # subject, organization
_Decision = tuple[str, str, str]  # subject, organization, permission name


@runtime_checkable
class EntitlementService(Protocol):
    async def permissions_of(
        self, subjects: Sequence[str], *, organization_id: str | None
    ) -> Mapping[str, frozenset[str]]:
        """The effective permissions of every subject, denials included; a subject without any may be left out."""


def check_entitlement(text: str) -> str:
    """The text itself if it can be granted, or denied by a leading `!`."""
    if text.startswith(DENIAL * 2):
        raise invalid("permission", "must begin with one ! to deny")
    check_permission_name(text.removeprefix(DENIAL))
    return text


def check_subject(text: str) -> str:
    if not text.strip() or len(text) > MAX_IDENTITY or not text.isprintable():
        raise invalid("subject", f"must be printable text of 1 to {MAX_IDENTITY} characters")
    if text.startswith(ROLE):
        check_role(text.removeprefix(ROLE))
    return text


def check_role(name: str) -> str:
    if _ROLE_NAME.fullmatch(name) is None:
        raise invalid("role", "must be small letters, digits and . _ -, beginning with a letter")
    return name


def check_organization(text: str) -> str:
    if len(text) > MAX_IDENTITY or not text.isprintable():
        raise invalid("organization", f"must be printable text of at most {MAX_IDENTITY} characters")
    return text


class StoredEntitlements:
    """The tables `entitlements` and `memberships`."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        log: ChangeLog,
        listener: ChangeListener,
        schema: str = SCHEMA,
    ) -> None:
        self._database = database
        self._clock = clock
        self._log = log
        self._listener = listener
        self._queries = Queries.load("butlers.outbound", schema=schema)
        self._remembered: ChangeCache[_Subject, frozenset[str]] = ChangeCache(
            ttl_s=PERMISSION_TTL_S,
            most=_MOST_REMEMBERED,
            clock=clock,
            group_of=lambda key: key[0],
            is_trusted=listener.is_live,
        )
        listener.subscribe(self.on_change)

    async def permissions_of(
        self, subjects: Sequence[str], *, organization_id: str | None
    ) -> Mapping[str, frozenset[str]]:
        """One read for all who are not remembered; every subject is in the answer."""
        if len(subjects) > MOST_SUBJECTS:
            raise invalid("subjects", f"at most {MOST_SUBJECTS} can be asked for at once")
        organization = organization_id or ""

        async def read(keys: Sequence[_Subject]) -> Mapping[_Subject, frozenset[str]]:
            ids = [subject for subject, _ in keys]
            rows = await self._database.fetch(self._queries.effective_permissions, ids, organization)
            found = {row["subject_id"]: frozenset(row["permissions"]) for row in rows}
            return {key: found.get(key[0], frozenset()) for key in keys}

        known = await self._remembered.get_many(((subject, organization) for subject in subjects), read)
        return {subject: permissions for (subject, _), permissions in known.items()}

    def on_change(self, change: Change | None) -> None:
        if change is not None and change.table not in ("entitlements", "memberships"):
            return
        # Who has a role is not known here, so a change of one concerns everybody.
        if change is None or change.keys is None or any(key.startswith(ROLE) for key in change.keys):
            self._remembered.clear()
        else:
            self._remembered.forget(change.keys)

    async def grant(self, subject: str, permission: str, *, organization_id: str = "", changed_by: str) -> bool:
        """Grant, or deny with a leading `!`. Whether that is new."""
        values = (check_subject(subject), check_entitlement(permission), check_organization(organization_id))
        return await self._change(
            self._queries.add_entitlement, "grant", values, changed_by, behind=(changed_by, self._clock.now())
        )

    async def revoke(self, subject: str, permission: str, *, organization_id: str = "", changed_by: str) -> bool:
        """Take a grant or a denial back. Whether there was one."""
        values = (check_subject(subject), check_entitlement(permission), check_organization(organization_id))
        return await self._change(self._queries.remove_entitlement, "revoke", values, changed_by)

    async def join(self, subject: str, role: str, *, organization_id: str = "", changed_by: str) -> bool:
        values = _membership(subject, role, organization_id)
        return await self._change(self._queries.add_membership, "join", values, changed_by, behind=(self._clock.now(),))

    async def leave(self, subject: str, role: str, *, organization_id: str = "", changed_by: str) -> bool:
        values = _membership(subject, role, organization_id)
        return await self._change(self._queries.remove_membership, "leave", values, changed_by)

    async def _change(
        self, query: str, action: str, values: tuple[str, str, str], changed_by: str, *, behind: tuple[Any, ...] = ()
    ) -> bool:
        subject, what, organization = values
        async with self._database.transaction() as connection:
            if await connection.fetchval(query, *values, *behind) is None:
                return False
            await self._record(connection, subject, action, {"what": what, "organization": organization}, changed_by)
        self._listener.announce(Change(table="entitlements", keys=(subject,)))
        return True

    async def _record(
        self, connection: Executor, subject: str, action: str, details: Mapping[str, Any], changed_by: str
    ) -> None:
        now: datetime = self._clock.now()
        await self._log.record(connection, subject, action, details, changed_by=changed_by, now=now)

    async def listed(
        self, subject: str | None, *, after: Sequence[str] | None, limit: int
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Grants and denials, one more than `limit` if there are more; and with a subject its memberships."""
        rows = await self._database.fetch(self._queries.list_entitlements, subject, after, limit + 1)
        members = (
            await self._database.fetch(self._queries.list_memberships, subject, _LISTED_MEMBERSHIPS) if subject else []
        )
        return [dict(row) for row in rows], [dict(row) for row in members]


def _membership(subject: str, role: str, organization_id: str) -> tuple[str, str, str]:
    if subject.startswith(ROLE):
        raise invalid("subject", "is a role; only people, butlers and callers have roles")
    if f"{ROLE}{role}" == EVERYONE:
        raise invalid("role", "everyone is every subject's role already")
    return check_subject(subject), check_role(role), check_organization(organization_id)


class PermissionGate:
    """Composes `messages:{direction}:{channel}` and remembers each decision for half a second."""

    def __init__(self, *, entitlements: EntitlementService, clock: Clock, listener: ChangeListener) -> None:
        self._entitlements = entitlements
        # Not bound to the listener's connection: half a second is all that a lost notification can cost.
        self._decisions: ChangeCache[_Decision, bool] = ChangeCache(
            ttl_s=DECISION_TTL_S, most=_MOST_REMEMBERED, clock=clock, group_of=lambda key: key[0]
        )
        listener.subscribe(self.on_change)

    async def granted(
        self, subjects: Sequence[str], direction: Direction, channels: Iterable[str], *, organization_id: str | None
    ) -> Mapping[str, frozenset[str]]:
        """For every subject the channels that it is permitted."""
        names = {permission_name(direction, channel): channel for channel in channels}
        organization = organization_id or ""

        async def decide(keys: Sequence[_Decision]) -> Mapping[_Decision, bool]:
            asked = list(dict.fromkeys(subject for subject, _, _ in keys))
            found: dict[str, frozenset[str]] = {}
            for first in range(0, len(asked), MOST_SUBJECTS):
                part = asked[first : first + MOST_SUBJECTS]
                found |= await self._entitlements.permissions_of(part, organization_id=organization_id)
            return {
                (subject, organization, name): is_permitted(found.get(subject, frozenset()), direction, names[name])
                for subject, _, name in keys
            }

        keys = ((subject, organization, name) for subject in subjects for name in names)
        decisions = await self._decisions.get_many(keys, decide)
        return {
            subject: frozenset(channel for name, channel in names.items() if decisions[subject, organization, name])
            for subject in subjects
        }

    def on_change(self, change: Change | None) -> None:
        if change is None or change.table in ("entitlements", "memberships"):
            self._decisions.clear()


def load_entitlement_service(reference: str) -> EntitlementService:
    """The service that the setting `entitlement_service` names as `module:factory`; the factory takes no argument."""
    factory: Callable[[], object] = _factory(reference)
    try:
        service = factory()
    except Exception as error:  # foreign code; its text may quote a secret
        raise _unusable(f"the factory raised {type(error).__name__}", reference) from error
    if not isinstance(service, EntitlementService):
        raise _unusable("the factory's result has no method permissions_of", reference)
    return service


def _factory(reference: str) -> Callable[[], object]:
    module, colon, attribute = reference.partition(":")
    if not (module and colon and attribute):
        raise _unusable("must be module:factory", reference)
    try:
        found = load(reference)
    except Exception as error:  # importing runs foreign code
        raise _unusable(f"cannot be imported ({type(error).__name__})", reference) from error
    if not callable(found):
        raise _unusable("is not callable", reference)
    return found  # type: ignore[no-any-return]


def _unusable(problem: str, reference: str) -> ConfigurationError:
    return ConfigurationError(
        problem,
        source="settings",
        key=f"entitlement_service = {reference}",
        remedy="name a function without arguments that returns a butlers.outbound.entitlements.EntitlementService",
    )
