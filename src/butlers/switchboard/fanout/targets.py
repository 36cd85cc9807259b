"""Whether a butler can be handed a route at this moment, by what the registry says of it.

Looked at right before each dispatch: between the decision and the dispatch a butler may have gone, or come back as
something else. What cannot fit is the sender's mistake (`validation_error`); who is away may return.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from butlers.contracts.envelope import invalid
from butlers.contracts.route import RouteEnvelope
from butlers.errors import ClassifiedError, TargetUnavailable
from butlers.storage.database import Database
from butlers.storage.queries import Queries

TOOL = "route.execute"
_CONTRACT = re.compile(r"route\.v(\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCard:
    """A line of the registry, as far as a dispatch needs it."""

    name: str
    eligibility_state: str
    held: bool  # an operator took it out of service
    capabilities: tuple[str, ...]
    route_contract_min: str
    route_contract_max: str


class Targets(Protocol):
    async def card_of(self, butler: str) -> TargetCard | None:
        """What is known of a butler now; None: it never registered."""


class TargetReader:
    def __init__(self, *, database: Database, schema: str) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard.fanout", schema=schema)

    async def card_of(self, butler: str) -> TargetCard | None:
        row = await self._database.fetchrow(self._queries.target_card, butler)
        if row is None:
            return None
        return TargetCard(**dict(row) | {"capabilities": tuple(row["capabilities"])})


def unfit(butler: str, card: TargetCard | None, *, by_policy: bool) -> ClassifiedError | None:
    """Why this butler cannot be handed a route; `by_policy`: a rule names it, whatever its signs of life say."""
    if card is None:
        return TargetUnavailable(f"{butler} is not registered")
    if TOOL not in card.capabilities:
        return invalid("target.butler", f"{butler} does not offer {TOOL}")
    spoken = f"{card.route_contract_min} to {card.route_contract_max}"
    if not _speaks(card):
        return invalid("schema_version", f"{butler} speaks {spoken}, not {RouteEnvelope.VERSION}")
    if card.held:
        return TargetUnavailable(f"{butler} is held by an operator")
    if card.eligibility_state != "active" and not by_policy:
        return TargetUnavailable(f"{butler} is {card.eligibility_state}")
    return None


def _speaks(card: TargetCard) -> bool:
    lowest, ours, highest = map(_number, (card.route_contract_min, RouteEnvelope.VERSION, card.route_contract_max))
    return lowest is not None and ours is not None and highest is not None and lowest <= ours <= highest


def _number(contract: str) -> int | None:
    match = _CONTRACT.fullmatch(contract)
    return int(match[1]) if match else None
