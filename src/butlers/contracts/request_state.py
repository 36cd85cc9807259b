"""The states of a request: what they are and what may follow what.

    accepted ──claim──> progress ──> parsed | errored
        ^                  │               │
        ├──put off─────────┤               │
        └──an operator puts it back────────┘

A request that Switchboard sheds at the door is stored as `errored` at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class RequestState(StrEnum):
    ACCEPTED = "accepted"  # it is stored and waits to be worked on
    PROGRESS = "progress"  # a worker has it
    PARSED = "parsed"  # every butler that had to answer has done so
    ERRORED = "errored"  # it ended with an error


_S = RequestState

OPEN = (_S.ACCEPTED, _S.PROGRESS)
ENDED = (_S.PARSED, _S.ERRORED)
GROUPS = {"OPEN": frozenset(OPEN), "ENDED": frozenset(ENDED)}

TRANSITIONS: Mapping[RequestState, frozenset[RequestState]] = {
    _S.ACCEPTED: frozenset({_S.PROGRESS, _S.PARSED, _S.ERRORED}),  # claimed; forced or cancelled by an operator
    _S.PROGRESS: frozenset({_S.ACCEPTED, _S.PARSED, _S.ERRORED}),  # put off or rerouted; ended
    _S.PARSED: frozenset({_S.ACCEPTED}),  # replayed
    _S.ERRORED: frozenset({_S.ACCEPTED, _S.PARSED}),  # retried, replayed, rerouted; forced
}
