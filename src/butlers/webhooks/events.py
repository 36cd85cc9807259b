"""Which events there are, and the patterns by which an endpoint chooses among them.

A pattern is the name of an event (`delivery.delivered`), a family (`delivery.*`), or all (`*`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from butlers.butler.lifecycle_events import LifecycleEvent
from butlers.contracts.delivery_state import DeliveryState
from butlers.contracts.envelope import invalid
from butlers.contracts.request_state import RequestState

EVERY = "*"
PING = "webhook.ping"  # the test event, sent when an operator asks for it and chosen by no pattern
MOST_PATTERNS = 50  # of one endpoint

# By family the states whose names the events carry.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "request": tuple(state.value for state in RequestState),
    "delivery": tuple(state.value for state in DeliveryState),
}
# Which butler may publish which families: a butler tells of its own work only.
PUBLISHERS: Mapping[str, Collection[str]] = {
    "switchboard": frozenset({"request"}),
    "messenger": frozenset({"delivery"}),
}


def check_patterns(given: Sequence[str]) -> list[str]:
    """The patterns in their order, each once; refuses what no event can match."""
    if not 1 <= len(given) <= MOST_PATTERNS:
        raise invalid("event_types", f"must hold 1 to {MOST_PATTERNS} patterns")
    known = known_patterns()
    if not set(given).issubset(known):
        raise invalid("event_types", f"holds an unknown event type; there are {', '.join(known)}")
    return list(dict.fromkeys(given))


def known_patterns() -> list[str]:
    """What an endpoint may choose, families first."""
    names = [f"{family}.{state}" for family, states in FAMILIES.items() for state in states]
    return [EVERY, *(f"{family}.*" for family in FAMILIES), *names]


def family_of(event_type: str) -> str:
    return event_type.partition(".")[0]


def wants(patterns: Collection[str], event_type: str) -> bool:
    """Whether an endpoint with these patterns is told of an event of this type."""
    return not {EVERY, f"{family_of(event_type)}.*", event_type}.isdisjoint(patterns)


def body_of(event: LifecycleEvent) -> dict[str, Any]:
    """What the receiver gets: the payload of Standard Webhooks."""
    wire = event.to_wire()
    return {"type": wire["type"], "timestamp": wire["at"], "data": wire["payload"]}
