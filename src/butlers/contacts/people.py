"""Finds the people that a caller names: by contact id, as `owner`, as `channel:address`, or by their name.

    0198c2f4-...        a contact id
    owner               the person this system works for
    telegram:4711       who has this address on an installed channel
    Anna Schmidt        the only contact of that name, in any case

One query resolves up to `MOST_REFERENCES` references. A reference that stands for nobody or for several people is a
problem and not a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from butlers.channels.registry import channel_of, channels
from butlers.contacts import SCHEMA
from butlers.contracts.envelope import MAX_IDENTITY, invalid
from butlers.errors import Conflict, FieldError, NotFound, ValidationError
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries

OWNER = "owner"
MOST_REFERENCES = 10_000  # in one call
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_UNKNOWN = "names no contact; give a contact id, owner, channel:address, or a contact's whole name"
_AMBIGUOUS = "names several contacts; give a contact id or channel:address"
_UNREADABLE = f"must be text of 1 to {MAX_IDENTITY} characters without NUL"


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonRecord:
    id: UUID
    name: str
    timezone: str | None  # of the IANA list
    locale: str | None  # like de or pt-BR
    preferred_channel: str | None
    channels: frozenset[str]  # on which the person has an address


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a text asks for; exactly one of the ways is set."""

    id: UUID | None = None
    is_owner: bool = False
    channel: str | None = None  # with `identity`
    identity: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPeople:
    people: Mapping[str, PersonRecord]  # by reference, as it was given
    problems: Mapping[str, ValidationError]  # by reference: NotFound, Conflict, or a text that nobody can have


def read_reference(text: str) -> Reference | None:
    """What the text asks for; None when it cannot name anybody."""
    trimmed = text.strip()
    if not trimmed or len(text) > MAX_IDENTITY or "\x00" in text or not text.isprintable():
        return None
    if trimmed.casefold() == OWNER:
        return Reference(is_owner=True)
    if _UUID.fullmatch(trimmed):
        return Reference(id=UUID(trimmed))
    channel, colon, address = trimmed.partition(":")
    if colon and channel in channels():
        return Reference(channel=channel, identity=_identity(channel, address)) if address.strip() else None
    return Reference(name=trimmed)


def _identity(channel: str, address: str) -> str:
    """As messages carry it; an address that no message comes from, such as a group, in its canonical spelling."""
    form = channel_of(channel).address
    try:
        return form.person(address)
    except ValueError:
        return form.canonical(address)


class People:
    """Resolves references to contacts."""

    def __init__(self, *, database: Database, schema: str = SCHEMA) -> None:
        self._database = database
        self._queries = Queries.load("butlers.contacts", schema=schema)

    async def resolve_people(self, references: Iterable[str], *, field: str = "person") -> Mapping[str, PersonRecord]:
        """Every reference's person; raises one error that lists all references that cannot be resolved.

        `field` names the argument in the error; of several references the place is added: `recipients[3]`.
        """
        given = list(dict.fromkeys(references))
        found = await self.find_people(given)
        if found.problems:
            raise _error(given, found.problems, field)
        return found.people

    async def find_people(self, references: Iterable[str]) -> ResolvedPeople:
        """The same without raising, for a caller that goes on with those who are known."""
        given = list(dict.fromkeys(references))
        if len(given) > MOST_REFERENCES:
            raise invalid("person", f"at most {MOST_REFERENCES} people can be named at once")
        read = {text: read_reference(text) for text in given}
        rows = await self._rows([(place, read[text]) for place, text in enumerate(given)])
        people: dict[str, PersonRecord] = {}
        problems: dict[str, ValidationError] = {}
        for place, text in enumerate(given):
            matches = rows.get(place, [])
            if len(matches) == 1:
                people[text] = _person(matches[0])
            else:
                problems[text] = _problem(read[text], matches)
        return ResolvedPeople(people=people, problems=problems)

    async def _rows(self, references: Sequence[tuple[int, Reference | None]]) -> dict[int, list[Record]]:
        asked = [(place, reference) for place, reference in references if reference is not None]
        if not asked:
            return {}
        columns = (
            [place for place, _ in asked],
            [reference.id for _, reference in asked],
            [reference.is_owner for _, reference in asked],
            [reference.channel for _, reference in asked],
            [reference.identity for _, reference in asked],
            [reference.name for _, reference in asked],
        )
        found: dict[int, list[Record]] = {}
        for row in await self._database.fetch(self._queries.people, *columns):
            found.setdefault(row["place"], []).append(row)
        return found


def _person(row: Record) -> PersonRecord:
    fields = {name: value for name, value in dict(row).items() if name != "place"}
    return PersonRecord(**fields | {"channels": frozenset(row["channels"])})


def _problem(reference: Reference | None, matches: Sequence[Record]) -> ValidationError:
    if reference is None:
        return invalid("person", _UNREADABLE)
    return Conflict.of("person", _AMBIGUOUS) if matches else NotFound.of("person", _UNKNOWN)


def _error(given: Sequence[str], problems: Mapping[str, ValidationError], field: str) -> ValidationError:
    """One error for all; its type is the problems' own if they have the same."""
    names = {text: field if len(given) == 1 else f"{field}[{place}]" for place, text in enumerate(given)}
    fields = tuple(FieldError(field=names[text], error=problem.fields[0].error) for text, problem in problems.items())
    kinds = {type(problem) for problem in problems.values()}
    kind = kinds.pop() if len(kinds) == 1 else ValidationError
    more = f" (and {len(fields) - 1} more)" if len(fields) > 1 else ""
    return kind(f"{fields[0].field}: {fields[0].error}{more}", fields=fields)
