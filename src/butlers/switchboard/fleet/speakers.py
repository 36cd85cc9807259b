"""Who may speak for a connector: whoever registered it, with a connector's token, and nobody else."""

from __future__ import annotations

from dataclasses import dataclass

from butlers.butler.identity import Caller, Role
from butlers.contracts.envelope import invalid
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.fleet.refusals import unknown_connector


@dataclass(frozen=True, slots=True, kw_only=True)
class Speakers:
    database: Database
    queries: Queries

    async def registering(self, caller: Caller | None, connector_type: str, endpoint_identity: str) -> str:
        """The caller's name; one that nobody spoke for yet becomes the caller's."""
        owner = await self._owner(connector_type, endpoint_identity)
        return _speaker(caller, owner)

    async def registered(self, caller: Caller | None, connector_type: str, endpoint_identity: str) -> str:
        """The caller's name, when it has reported for this connector."""
        owner = await self._owner(connector_type, endpoint_identity)
        name = _speaker(caller, owner)
        if owner is None:
            raise unknown_connector()
        return name

    async def _owner(self, connector_type: str, endpoint_identity: str) -> str | None:
        owner: str | None = await self.database.fetchval(self.queries.principal_of, connector_type, endpoint_identity)
        return owner


def _speaker(caller: Caller | None, owner: str | None) -> str:
    if caller is None or caller.role is not Role.CONNECTOR:
        raise invalid("authorization", "only a connector may speak for a connector")
    if owner not in (None, caller.name):
        raise invalid("authorization", f"{caller.name!r} may not speak for a connector of {owner!r}")
    return caller.name
