"""The states of a delivery: what they are, what may follow what, and the groups that others ask for.

    pending ──claim──> in_progress ──> delivered | failed | dead_lettered | uncertain | expired
       ^                 │      ^
       ├──given back─────┤      │ claim
       │                 └──> awaiting_retry
       ├── released by a person or by a rule
       pending_approval <── pending_missing_identifier

`failed`, `dead_lettered` and `expired` say that nothing arrived. A delivery of which an attempt may have arrived ends
as `uncertain`, until a person or the provider says what became of it.

Every other place that names states is compared with this file by `tests/architecture/test_states.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

# The same as `DeliveryState`, for envelopes and signatures: the type checker knows each name.
DeliveryStatus = Literal[
    "pending",
    "in_progress",
    "awaiting_retry",
    "delivered",
    "failed",
    "dead_lettered",
    "uncertain",
    "expired",
    "pending_approval",
    "pending_missing_identifier",
]


class DeliveryState(StrEnum):
    PENDING = "pending"  # it may be attempted
    IN_PROGRESS = "in_progress"  # a worker attempts it
    AWAITING_RETRY = "awaiting_retry"  # an attempt failed, another follows
    DELIVERED = "delivered"  # the provider has it
    FAILED = "failed"  # it cannot be sent
    DEAD_LETTERED = "dead_lettered"  # its attempts are used up, or an operator set it aside
    UNCERTAIN = "uncertain"  # it may or may not have arrived
    EXPIRED = "expired"  # it was too late to send it
    PENDING_APPROVAL = "pending_approval"  # a person has to allow it
    PENDING_MISSING_IDENTIFIER = "pending_missing_identifier"  # the contact has no address on this channel


_S = DeliveryState

# Groups, each in the order in which people are shown it.
WAITING = (_S.PENDING, _S.AWAITING_RETRY)  # a worker may claim it when it is due
IN_FLIGHT = (_S.PENDING, _S.IN_PROGRESS)  # it passed admission and waits for no clock
OPEN = (_S.PENDING, _S.IN_PROGRESS, _S.AWAITING_RETRY)  # it is on its way without a person's help
PARKED = (_S.PENDING_APPROVAL, _S.PENDING_MISSING_IDENTIFIER)  # a person has to act before the first attempt
NEEDS_PERSON = (*PARKED, _S.UNCERTAIN)  # a person has to act
UNENDED = (*OPEN, *PARKED)  # it has no end yet
EXPIRABLE = (*WAITING, *PARKED)  # its time can run out
ENDED = (_S.DELIVERED, _S.FAILED, _S.DEAD_LETTERED, _S.UNCERTAIN, _S.EXPIRED)
FINISHED = (_S.DELIVERED, _S.FAILED, _S.DEAD_LETTERED, _S.EXPIRED)  # ended, and no person has to say anything about it
ENDED_BADLY = (_S.FAILED, _S.DEAD_LETTERED, _S.UNCERTAIN, _S.EXPIRED)
GIVEN_UP = (_S.FAILED, _S.DEAD_LETTERED)  # the way out gave up; its error class tells whether that was its fault
QUARANTINABLE = (_S.PENDING, _S.AWAITING_RETRY, _S.FAILED, _S.UNCERTAIN)  # an operator may set it aside
MAY_STILL_ARRIVE = (_S.UNCERTAIN, _S.AWAITING_RETRY)  # a late confirmation of the provider counts

GROUPS = {
    name: frozenset(states)
    for name, states in {
        "WAITING": WAITING,
        "IN_FLIGHT": IN_FLIGHT,
        "OPEN": OPEN,
        "PARKED": PARKED,
        "NEEDS_PERSON": NEEDS_PERSON,
        "UNENDED": UNENDED,
        "EXPIRABLE": EXPIRABLE,
        "ENDED": ENDED,
        "GIVEN_UP": GIVEN_UP,
        "MAY_STILL_ARRIVE": MAY_STILL_ARRIVE,
    }.items()
}

TRANSITIONS: Mapping[DeliveryState, frozenset[DeliveryState]] = {
    # claimed; refused when a released one is admitted; set aside; out of time
    _S.PENDING: frozenset({_S.IN_PROGRESS, _S.FAILED, _S.DEAD_LETTERED, _S.EXPIRED, _S.UNCERTAIN}),
    # given back; or the attempt ended
    _S.IN_PROGRESS: frozenset({*WAITING, *ENDED}),
    # claimed; confirmed or returned late; set aside; out of time
    _S.AWAITING_RETRY: frozenset({_S.IN_PROGRESS, *ENDED}),
    # settled by the provider or a person: it arrived, is to be sent again, or came back; or it is set aside
    _S.UNCERTAIN: frozenset({_S.DELIVERED, _S.PENDING, _S.FAILED, _S.DEAD_LETTERED}),
    _S.FAILED: frozenset({_S.DEAD_LETTERED}),
    _S.DEAD_LETTERED: frozenset({_S.DELIVERED, _S.PENDING}),  # settled by a person, while an attempt is in doubt
    _S.DELIVERED: frozenset(),
    _S.EXPIRED: frozenset(),
    _S.PENDING_APPROVAL: frozenset({_S.PENDING, _S.FAILED, _S.EXPIRED}),
    _S.PENDING_MISSING_IDENTIFIER: frozenset({_S.PENDING_APPROVAL, _S.FAILED, _S.EXPIRED}),
}
