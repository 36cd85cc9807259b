"""People and how to reach them: the tables `shared.contacts` and `shared.contact_info`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from butlers.clock import Clock
from butlers.storage.database import Database, Executor, Record
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries

SCHEMA = "shared"
MIGRATIONS = MigrationSet(schema=SCHEMA, package="butlers.contacts", component="contacts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    id: UUID
    name: str
    preferred_channel: str | None
    timezone: str | None


class Contacts:
    """Finds people and their identifiers."""

    def __init__(self, *, database: Database, clock: Clock, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.contacts", schema=SCHEMA)
        self._clock = clock
        self._new_id = new_id

    async def identifier(self, contact_id: UUID, channel: str) -> str | None:
        value: str | None = await self._database.fetchval(self._queries.resolve, contact_id, channel)
        return value

    async def secret(self, contact_id: UUID, kind: str) -> str | None:
        value: str | None = await self._database.fetchval(self._queries.resolve_secret, contact_id, kind)
        return value

    async def owner(self) -> Contact | None:
        return _contact(await self._database.fetchrow(self._queries.owner))

    async def get(self, contact_id: UUID) -> Contact | None:
        return _contact(await self._database.fetchrow(self._queries.contact, contact_id))

    async def configure_owner(self, name: str, identifiers: Mapping[str, str]) -> UUID:
        """Write the owner as the settings name him; the first identifier is the preferred channel."""
        now = self._clock.now()
        async with self._database.transaction() as connection:
            preferred = next(iter(identifiers), None)
            owner: UUID = await connection.fetchval(self._queries.ensure_owner, self._new_id(), name, preferred, now)
            for channel, value in identifiers.items():
                await connection.execute(self._queries.set_primary_info, self._new_id(), owner, channel, value, now)
        return owner

    async def is_owner(self, channel: str, identity: str) -> bool | None:
        """Whether this sender on a channel is the owner; None: no contact has the identity."""
        found: bool | None = await self._database.fetchval(self._queries.is_owner_identity, channel, identity)
        return found

    async def owner_writes_by(self, channel: str) -> bool:
        """Whether messages on the channel can be known to be the owner's."""
        return bool(await self._database.fetchval(self._queries.owner_writes_by, channel))

    async def find(self, connection: Executor, channel: str, identity: str) -> UUID | None:
        """The contact who has this identity."""
        known: UUID | None = await connection.fetchval(self._queries.contact_of_identity, channel, identity)
        return known

    async def add(self, connection: Executor, channel: str, identity: str, name: str) -> UUID:
        """The contact who has this identity, made when there is none."""
        known = await self.find(connection, channel, identity)
        if known is not None:
            return known
        contact, now = self._new_id(), self._clock.now()
        await connection.execute(self._queries.add_contact, contact, name, channel, now)
        await connection.execute(self._queries.add_identity, self._new_id(), contact, channel, identity, now)
        return contact

    async def add_to_owner(self, connection: Executor, channel: str, identity: str, name: str) -> UUID:
        """The owner, who has this identity from now on; `name` counts when there was no owner."""
        now = self._clock.now()
        owner: UUID = await connection.fetchval(self._queries.keep_owner, self._new_id(), name, channel, now)
        await connection.execute(self._queries.add_identity, self._new_id(), owner, channel, identity, now)
        return owner

    async def add_to(self, contact: UUID, connection: Executor, channel: str, identity: str, _name: str) -> UUID:
        """The contact, who has this identity from now on."""
        await connection.execute(
            self._queries.add_identity, self._new_id(), contact, channel, identity, self._clock.now()
        )
        return contact

    async def remove(self, channel: str, identity: str) -> None:
        """The identity is no contact's any more, unless it is the owner's."""
        await self._database.execute(self._queries.remove_identity, channel, identity)


def _contact(row: Record | None) -> Contact | None:
    return Contact(**dict(row)) if row else None
