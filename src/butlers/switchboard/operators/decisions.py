"""What an operator may do in which state, and with what a request begins anew.

    action           accepted   progress   parsed    errored
    manual_reroute   yes        yes        -         yes        back to accepted, to the named butler
    cancel           yes        -          -         -          errored
    abort            -          yes        -         -          errored, and the work on it is stopped
    retry            -          -          -         yes        back to accepted
    replay           -          -          letter    yes        back to accepted; `letter`: a part had failed
    force_complete   yes        yes        -         yes        parsed

The state is read and changed under the row's lock, so of an operator and a worker that finishes, one comes first and
the other finds the request in another state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from butlers.contracts.request_state import ENDED, OPEN
from butlers.errors import ErrorClass
from butlers.operations.operators import Action
from butlers.reliability.dead_letter import DeadLetter, ReplayObstacle, ReplayPolicy, assess_replay
from butlers.switchboard.operators.dead_letters import ROUND, Outcome, first_name, succeeded
from butlers.switchboard.routing.decision import whole

_ALLOWED: Mapping[Action, frozenset[str]] = {
    Action.MANUAL_REROUTE: frozenset({*OPEN, "errored"}),
    Action.CANCEL: frozenset({"accepted"}),
    Action.ABORT: frozenset({"progress"}),
    Action.RETRY: frozenset({"errored"}),
    Action.REPLAY: frozenset(ENDED),
    Action.FORCE_COMPLETE: frozenset({*OPEN, "errored"}),
}
_STANDS = {
    "accepted": "waits to be worked on",
    "progress": "is being worked on",
    "parsed": "has ended well",
    "errored": "has ended with an error",
}
_INSTEAD = {
    (Action.CANCEL, "progress"): "abort stops it",
    (Action.CANCEL, "errored"): "there is nothing to cancel",
    (Action.ABORT, "accepted"): "cancel withdraws it",
    (Action.ABORT, "errored"): "there is nothing to stop",
    (Action.RETRY, "accepted"): "it will be worked on without a retry",
    (Action.RETRY, "progress"): "wait for its end, or abort it first",
    (Action.REPLAY, "accepted"): "it will be worked on without a replay",
    (Action.REPLAY, "progress"): "wait for its end, or abort it first",
}
_OBSTACLES = {
    ReplayObstacle.REPLAY_IN_PROGRESS: "a replay of it is under way",
    ReplayObstacle.ALREADY_DELIVERED: "it is settled already",
    ReplayObstacle.REPLAY_LIMIT_REACHED: "it was replayed often enough; `retry` runs its request once more",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """With what a request goes back into the queue."""

    routing_output: Mapping[str, Any] | None  # None: it is routed anew
    outcomes: Sequence[Outcome] | None  # what is settled and not asked for again


def refusal(action: Action, state: str) -> str | None:
    """Why the action is not possible now; None when it is."""
    if state in _ALLOWED[action]:
        return None
    instead = _INSTEAD.get((action, state))
    return f"the request {_STANDS[state]}" + (f"; {instead}" if instead else "")


def possible(state: str) -> list[Action]:
    """What can be done about a request now; a replay is a matter of its dead letter."""
    return [action for action in Action if action is not Action.REPLAY and state in _ALLOWED[action]]


def replay_refusal(letter: Mapping[str, Any], policy: ReplayPolicy, now: datetime) -> str | None:
    """Why a dead letter is not replayed now; None when it is."""
    if not letter["replay_eligible"]:
        return str(letter["ineligible_reason"])
    known = DeadLetter(
        error_class=ErrorClass(letter["error_class"]),
        replay_count=letter["replay_count"],
        replay_in_progress=letter["replay_outcome"] == "pending",
        delivered=letter["resolved_at"] is not None,
    )
    reasons = assess_replay(known, policy, now).reasons
    return "; ".join(_OBSTACLES.get(reason, reason.value) for reason in reasons) or None


def round_after(override: Mapping[str, Any] | None) -> int:
    """How many times operators will have put the request back."""
    return int((override or {}).get("round", 0)) + 1


def repeated(routing_output: Mapping[str, Any] | None, outcomes: Iterable[Outcome] | None, turn: int) -> Beginning:
    """The same work again: parts that succeeded stay settled, and parts that a butler has refused for good get a new
    name, because it answers a repeat under the old one from its record. When there is neither, it is routed anew.
    """
    known = list(outcomes or ())
    done = [outcome for outcome in known if succeeded(outcome)]
    answered = [outcome for outcome in known if outcome.get("raw_response") is not None and outcome.get("error")]
    stuck = {str(outcome["segment_id"]) for outcome in answered if not outcome["error"].get("retryable")}
    if routing_output is None or not (done or stuck):
        return Beginning(routing_output=None, outcomes=None)
    names = {name: f"{first_name(name)}{ROUND}{turn}" for name in stuck}
    return Beginning(routing_output=_renamed(routing_output, names), outcomes=done)


def rerouted(text: str, butler: str, *, why: str, turn: int) -> Beginning:
    """The whole text to the butler that a person named."""
    decision = whole(text, butler, router="policy", confidence=1.0, why=why)
    [segment] = decision.segments
    segment = replace(segment, segment_id=f"{segment.segment_id}{ROUND}{turn}")
    return Beginning(routing_output=asdict(replace(decision, segments=(segment,))), outcomes=None)


def handed_to(routing_output: Mapping[str, Any] | None) -> list[str]:
    """Butlers that may have the message by now."""
    return sorted({segment["butler"] for segment in (routing_output or {}).get("segments", [])})


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The decision and its plan with other segment ids, wherever they stand."""
    if isinstance(value, Mapping):
        return {key: _renamed(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value
