"""Carries out the operations on preferences and entitlements that are declared in `operations/`."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pydantic

from butlers.butler.activity import Report
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.clock import Clock
from butlers.contacts.people import People, PersonRecord, read_reference
from butlers.contracts.envelope import field_errors, invalid
from butlers.errors import NotFound, ValidationError
from butlers.operations import entitlements as entitlement_operations
from butlers.operations import preferences as operations
from butlers.operations.entitlements import GrantArguments, ListArguments, MembershipArguments
from butlers.operations.operation import NoArguments
from butlers.operations.preferences import (
    ChoiceArguments,
    MuteArguments,
    OrganizationArguments,
    PersonArguments,
    QuietHoursArguments,
    ReplaceArguments,
    ReplaceDefaultsArguments,
    ReplaceOrganizationArguments,
)
from butlers.outbound.change_log import ChangeLog
from butlers.outbound.documents import QuietHoursDocument
from butlers.outbound.entitlements import ROLE, EntitlementService, StoredEntitlements
from butlers.outbound.mutes import read_mute_end
from butlers.outbound.preferences import SYSTEM_SCOPE, ChangedBy, PreferenceCache, PreferenceStore, organization_scope

CHOICES = {"yes": True, "no": False, "unset": None}
OFF = "off"
NO_ZONE = "UTC"  # of a person whose time zone is not known


def changed_by(caller: Caller) -> ChangedBy:
    return ChangedBy(name=f"{caller.role.value}:{caller.name}")


def quiet_window(start: str, end: str, timezone: str, days: list[str]) -> QuietHoursDocument:
    """The window, or an error that names every wrong field."""
    given = {"start_time": start, "end_time": end, "timezone": timezone, "days_of_week": days}
    try:
        return QuietHoursDocument.model_validate_json(json.dumps(given))
    except pydantic.ValidationError as error:
        fields = tuple(field_errors(error))
        raise ValidationError("; ".join(f"{one.field} {one.error}" for one in fields), fields=fields) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceTools:
    people: People
    store: PreferenceStore
    cache: PreferenceCache
    log: ChangeLog
    clock: Clock
    report: Report  # what callers did

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.SHOW, self._show),
            Tool.of(operations.SET, self._set),
            Tool.of(operations.MUTE, self._mute),
            Tool.of(operations.UNMUTE, self._unmute),
            Tool.of(operations.QUIET_HOURS, self._quiet_hours),
            Tool.of(operations.REPLACE, self._replace),
            Tool.of(operations.ORGANIZATION, self._organization),
            Tool.of(operations.REPLACE_ORGANIZATION, self._replace_organization),
            Tool.of(operations.DEFAULTS, self._defaults),
            Tool.of(operations.REPLACE_DEFAULTS, self._replace_defaults),
        ]

    async def _show(self, _caller: Caller, given: PersonArguments) -> dict[str, Any]:
        person = await self._person(given.person)
        return wire({**await self._stored(person), "changes": await self.log.of(str(person.id))})

    async def _set(self, caller: Caller, given: ChoiceArguments) -> dict[str, Any]:
        person, by = await self._person(given.person), changed_by(caller)
        await self.store.set_matrix_cell(str(person.id), given.event, given.channel, CHOICES[given.choice], by=by)
        return await self._done(caller, "preferences.set", person)

    async def _mute(self, caller: Caller, given: MuteArguments) -> dict[str, Any]:
        person, now = await self._person(given.person), self.clock.now()
        until = read_mute_end(given.duration, now=now, timezone=person.timezone or NO_ZONE)
        await self.store.mute(str(person.id), until, given.event, by=changed_by(caller))
        return await self._done(caller, "preferences.mute", person) | {"until": until.isoformat()}

    async def _unmute(self, caller: Caller, given: PersonArguments) -> dict[str, Any]:
        person = await self._person(given.person)
        await self.store.unmute(str(person.id), by=changed_by(caller))
        return await self._done(caller, "preferences.unmute", person)

    async def _quiet_hours(self, caller: Caller, given: QuietHoursArguments) -> dict[str, Any]:
        person, windows = await self._person(given.person), list[QuietHoursDocument]()
        if given.start != OFF:
            if given.end is None:
                raise invalid("end", "is required unless start is off")
            timezone = given.timezone or person.timezone or NO_ZONE
            windows = [quiet_window(given.start, given.end, timezone, given.days)]
        await self.store.set_quiet_hours(str(person.id), windows, by=changed_by(caller))
        return await self._done(caller, "preferences.quiet_hours", person)

    async def _replace(self, caller: Caller, given: ReplaceArguments) -> dict[str, Any]:
        person = await self._person(given.person)
        await self.store.replace(str(person.id), _text(given.document), by=changed_by(caller))
        return await self._done(caller, "preferences.replace", person)

    async def _organization(self, _caller: Caller, given: OrganizationArguments) -> dict[str, Any]:
        text = await self.cache.organization(given.organization)
        return wire({"document": _loaded(text), "changes": await self.log.of(organization_scope(given.organization))})

    async def _replace_organization(self, caller: Caller, given: ReplaceOrganizationArguments) -> dict[str, Any]:
        text = _text(given.document)
        await self.store.replace_organization(given.organization, text, by=changed_by(caller))
        self._reported(caller, "preferences.replace_organization")
        return {"document": given.document}

    async def _defaults(self, _caller: Caller, _given: NoArguments) -> dict[str, Any]:
        return wire({"document": _loaded(await self.cache.system()), "changes": await self.log.of(SYSTEM_SCOPE)})

    async def _replace_defaults(self, caller: Caller, given: ReplaceDefaultsArguments) -> dict[str, Any]:
        await self.store.replace_system(_text(given.document), by=changed_by(caller))
        self._reported(caller, "preferences.replace_defaults")
        return {"document": given.document}

    async def _person(self, reference: str) -> PersonRecord:
        return (await self.people.resolve_people([reference]))[reference]

    async def _stored(self, person: PersonRecord) -> dict[str, Any]:
        texts = await self.cache.documents([str(person.id)])
        shown = {"id": str(person.id), "name": person.name, "timezone": person.timezone}
        return {"person": shown, "document": _loaded(texts[str(person.id)])}

    async def _done(self, caller: Caller, operation: str, person: PersonRecord) -> dict[str, Any]:
        self._reported(caller, operation)
        return await self._stored(person)

    def _reported(self, caller: Caller, operation: str) -> None:
        self.report(operation, {}, result="completed", error=None, actor=caller.name)


def _text(document: dict[str, Any]) -> str:
    try:
        return json.dumps(document, allow_nan=False)
    except ValueError:
        raise invalid("document", "must not hold numbers that JSON does not know") from None


def _loaded(text: str | None) -> Any:
    return json.loads(text) if text is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitlementTools:
    people: People
    stored: StoredEntitlements
    effective: EntitlementService  # the stored ones, or a company's own
    names: Callable[[], Collection[str]]  # of butlers and callers; asked each time: tokens come and go
    report: Report

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(entitlement_operations.LIST, self._list),
            Tool.of(entitlement_operations.GRANT, self._grant),
            Tool.of(entitlement_operations.REVOKE, self._revoke),
            Tool.of(entitlement_operations.JOIN, self._join),
            Tool.of(entitlement_operations.LEAVE, self._leave),
        ]

    async def _list(self, _caller: Caller, given: ListArguments) -> dict[str, Any]:
        subject = await self._listed_subject(given.subject) if given.subject else None
        after = _read_cursor(given.cursor)
        rows, memberships = await self.stored.listed(subject, after=after, limit=given.limit)
        shown, held = rows[: given.limit], frozenset[str]()
        if subject is not None:
            found = await self.effective.permissions_of([subject], organization_id=given.organization)
            held = found.get(subject, frozenset())
        more = len(rows) > given.limit
        return wire(
            {
                "entitlements": shown,
                "memberships": memberships,
                "effective": sorted(held),
                "next_cursor": _cursor(shown[-1]) if more else None,
            }
        )

    async def _grant(self, caller: Caller, given: GrantArguments) -> dict[str, Any]:
        subject = await self._subject(given.subject)
        changed = await self.stored.grant(subject, given.permission, **_options(caller, given))
        return self._done(caller, "entitlements.grant", subject, changed=changed)

    async def _revoke(self, caller: Caller, given: GrantArguments) -> dict[str, Any]:
        subject = await self._held_subject(given.subject)
        changed = await self.stored.revoke(subject, given.permission, **_options(caller, given))
        return self._done(caller, "entitlements.revoke", subject, changed=changed)

    async def _join(self, caller: Caller, given: MembershipArguments) -> dict[str, Any]:
        subject = await self._subject(given.subject)
        changed = await self.stored.join(subject, given.role, **_options(caller, given))
        return self._done(caller, "entitlements.join", subject, changed=changed)

    async def _leave(self, caller: Caller, given: MembershipArguments) -> dict[str, Any]:
        subject = await self._held_subject(given.subject)
        changed = await self.stored.leave(subject, given.role, **_options(caller, given))
        return self._done(caller, "entitlements.leave", subject, changed=changed)

    async def _subject(self, text: str) -> str:
        """A role, a butler and a caller stand for themselves; every other text names a contact, who has an id."""
        reference = read_reference(text)
        name = reference.name if reference is not None else None
        if name is not None and (name.startswith(ROLE) or name in self.names()):
            return name
        return str((await self.people.resolve_people([text], field="subject"))[text].id)

    async def _listed_subject(self, text: str) -> str:
        """The same; an id or a name that nobody has stands for itself, such as that of a contact who is gone."""
        try:
            return await self._subject(text)
        except NotFound:
            reference = read_reference(text)
            if reference is None or (named := reference.id or reference.name) is None:
                raise
            return str(named)

    async def _held_subject(self, text: str) -> str:
        """The same for what is taken back: of one whom nobody knows only if there is something to take."""
        subject = await self._listed_subject(text)
        rows, memberships = await self.stored.listed(subject, after=None, limit=1)
        return subject if rows or memberships else await self._subject(text)

    def _done(self, caller: Caller, operation: str, subject: str, *, changed: bool) -> dict[str, Any]:
        self.report(operation, {}, result="completed", error=None, actor=caller.name)
        return {"subject": subject, "changed": changed}


def _options(caller: Caller, given: GrantArguments | MembershipArguments) -> dict[str, str]:
    return {"organization_id": given.organization or "", "changed_by": changed_by(caller).name}


def _cursor(row: dict[str, Any]) -> str:
    place = [row["subject_id"], row["permission"], row["organization_id"]]
    return urlsafe_b64encode(json.dumps(place).encode()).decode()


def _read_cursor(text: str | None) -> list[str] | None:
    if text is None:
        return None
    try:
        place = json.loads(urlsafe_b64decode(text.encode()))
    except ValueError:
        place = None
    if not isinstance(place, list) or len(place) != 3 or not all(isinstance(one, str) for one in place):
        raise invalid("cursor", "is not the next_cursor of an earlier page")
    return place
