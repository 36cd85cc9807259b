"""Whether a sender is served. Pure: the channel's policy, what is known of the sender, and what vouches for a mail.

| policy | served | everybody else |
|---|---|---|
| owner | the owner | refused |
| contacts | people in the contacts | refused |
| pairing | people in the contacts | gets a code once, and is refused until somebody approves it |
| open | everybody | |

A sender whom the channel has not authenticated is nobody's contact, whatever name it has. `open` serves such a sender
only under a name that is nobody's: a forged From does not make anybody the owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Policy(StrEnum):
    OWNER = "owner"
    CONTACTS = "contacts"
    PAIRING = "pairing"
    OPEN = "open"


class Known(StrEnum):
    """What the contacts say about a sender."""

    OWNER = "owner"
    CONTACT = "contact"
    STRANGER = "stranger"


class Outcome(StrEnum):
    SERVED = "served"
    PAIRING = "pairing"  # refused, with a code
    REFUSED = "refused"


class Reason(StrEnum):
    """Why a sender is not served, as lists and metrics say it."""

    UNKNOWN = "unknown_sender"
    NOT_THE_OWNER = "not_the_owner"
    NOT_AUTHENTICATED = "not_authenticated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    outcome: Outcome
    reason: Reason | None = None


SERVED = Decision(outcome=Outcome.SERVED)


def decide(policy: Policy, known: Known, *, authenticated: bool = True) -> Decision:
    if not authenticated and (policy is not Policy.OPEN or known is not Known.STRANGER):
        return Decision(outcome=Outcome.REFUSED, reason=Reason.NOT_AUTHENTICATED)
    if policy is Policy.OPEN:
        return SERVED
    if known is Known.OWNER or (known is Known.CONTACT and policy is not Policy.OWNER):
        return SERVED
    if known is Known.CONTACT:
        return Decision(outcome=Outcome.REFUSED, reason=Reason.NOT_THE_OWNER)
    outcome = Outcome.PAIRING if policy is Policy.PAIRING else Outcome.REFUSED
    return Decision(outcome=outcome, reason=Reason.UNKNOWN)
