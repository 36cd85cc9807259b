"""The states of an action that waits for a person.

pending ──approve──> approved ──execute──> executed
   ├──reject──> rejected
   └──no person decided in time──> expired
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Status = Literal["pending", "approved", "rejected", "expired", "executed"]
STATUSES: tuple[str, ...] = get_args(Status)

OPEN: tuple[Status, ...] = ("pending", "approved")
NEEDS_PERSON: tuple[Status, ...] = ("pending",)
ENDED: tuple[Status, ...] = ("rejected", "expired", "executed")
GROUPS = {"OPEN": frozenset(OPEN), "NEEDS_PERSON": frozenset(NEEDS_PERSON), "ENDED": frozenset(ENDED)}

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "pending": frozenset({"approved", "rejected", "expired"}),
    "approved": frozenset({"executed"}),
    "rejected": frozenset(),
    "expired": frozenset(),
    "executed": frozenset(),
}
