"""Who may speak for a connector: a connector's token that grants its channel and endpoint, and of several such tokens
the one that registered it.
"""

from __future__ import annotations

from dataclasses import dataclass

from butlers.butler.identity import Caller
from butlers.errors import Forbidden, NotFound
from butlers.operations.operation import Role
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.authority import may_report_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Speakers:
    database: Database
    queries: Queries

    async def registering(self, caller: Caller | None, connector_type: str, endpoint_identity: str) -> str:
        """The caller's name; one that nobody spoke for yet becomes the caller's."""
        _check_grant(caller, connector_type, endpoint_identity)
        return _speaker(caller, await self._owner(connector_type, endpoint_identity))

    async def registered(self, caller: Caller | None, connector_type: str, endpoint_identity: str) -> str:
        """The caller's name, when it has reported for this connector."""
        _check_grant(caller, connector_type, endpoint_identity)
        owner = await self._owner(connector_type, endpoint_identity)
        name = _speaker(caller, owner)
        if owner is None:
            raise NotFound.of("endpoint_identity", "no such connector")
        return name

    async def _owner(self, connector_type: str, endpoint_identity: str) -> str | None:
        owner: str | None = await self.database.fetchval(self.queries.principal_of, connector_type, endpoint_identity)
        return owner


def _check_grant(caller: Caller | None, connector_type: str, endpoint: str) -> None:
    if caller is not None and caller.role is Role.CONNECTOR and not may_report_for(caller, connector_type, endpoint):
        how = f"butlers token issue {caller.name} --role connector --channel CHANNEL --endpoint {endpoint}"
        raise Forbidden.of("authorization", f"{caller.name!r} has no grant for {connector_type} at {endpoint} ({how})")


def _speaker(caller: Caller | None, owner: str | None) -> str:
    if caller is None or caller.role is not Role.CONNECTOR:
        raise Forbidden.of("authorization", "only a connector may speak for a connector")
    if owner not in (None, caller.name):
        raise Forbidden.of("authorization", f"{caller.name!r} may not speak for a connector of {owner!r}")
    return caller.name
