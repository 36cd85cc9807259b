"""The states of one message to one person: what they are, what may follow what, and the groups that others ask for.

    planned ──into the queue──> queued ──due──> sending ──> delivered | dead_lettered | expired | blocked
                                  ^               │
                                  └──later────────┤ (a retry, quiet hours, a throttle, another channel)
                                                  └──> digested: a digest carries it

Every other place that names states is compared with this file by `tests/architecture/test_states.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class MessageState(StrEnum):
    PLANNED = "planned"  # decided and stored, not in the queue yet
    QUEUED = "queued"  # in the queue until it is due
    SENDING = "sending"  # handed to Switchboard; Messenger has it, or was asked to take it
    DELIVERED = "delivered"  # the provider has it
    DIGESTED = "digested"  # a digest carries it
    BLOCKED = "blocked"  # no longer permitted or wanted when it was due
    EXPIRED = "expired"  # it was too late to send it
    DEAD_LETTERED = "dead_lettered"  # every allowed channel failed
    CANCELLED = "cancelled"  # an operator or its sender withdrew it


_S = MessageState

OPEN = (_S.PLANNED, _S.QUEUED, _S.SENDING)
ENDED = (_S.DELIVERED, _S.DIGESTED, _S.BLOCKED, _S.EXPIRED, _S.DEAD_LETTERED, _S.CANCELLED)
IN_QUEUE = (_S.QUEUED, _S.SENDING)  # the queue has an entry for it
NOT_LEFT = (_S.PLANNED, _S.QUEUED)  # no worker has handed it over
GROUPS = {
    "OPEN": frozenset(OPEN),
    "ENDED": frozenset(ENDED),
    "IN_QUEUE": frozenset(IN_QUEUE),
    "NOT_LEFT": frozenset(NOT_LEFT),
}

TRANSITIONS: Mapping[MessageState, frozenset[MessageState]] = {
    _S.PLANNED: frozenset({_S.QUEUED, _S.CANCELLED, _S.DEAD_LETTERED}),  # the queue refuses it for good
    # due, or ended without an attempt; a repeat that was acknowledged is what it was before: delivered
    _S.QUEUED: frozenset({_S.SENDING, *ENDED}),
    # later: a retry, another channel, or a repeat of what was delivered
    _S.SENDING: frozenset({_S.QUEUED, _S.DELIVERED, _S.BLOCKED, _S.EXPIRED, _S.DEAD_LETTERED}),
    _S.DELIVERED: frozenset(),
    _S.DIGESTED: frozenset({_S.CANCELLED}),  # before its digest leaves
    _S.BLOCKED: frozenset(),
    _S.EXPIRED: frozenset(),
    _S.DEAD_LETTERED: frozenset({_S.QUEUED}),  # replayed
    _S.CANCELLED: frozenset(),
}
