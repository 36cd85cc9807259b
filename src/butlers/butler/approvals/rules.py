"""Which rule allows a call. Pure: the time is an argument.

A rule names a tool and constrains some of its arguments:

    {"recipient": {"type": "exact", "value": "7"},          2 points
     "subject":   {"type": "pattern", "value": "Report *"}, 1 point   a glob, on text only, case counts
     "message":   {"type": "any"}}                          0 points

Arguments that a rule does not name are free, except `identity_scope`: a rule that does not name it is about the bot's
account, and never lets anything be said in the owner's name. `exact` and `pattern` need the argument to be there. Of
several rules that match, the most specific wins; of equals, a bounded one before an unbounded one (so that permissions
meant to run out do), then the newest, then the lowest id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any
from uuid import UUID

POINTS: Mapping[str, int] = {"exact": 2, "pattern": 1, "any": 0}
Constraints = Mapping[str, Mapping[str, Any]]

# Arguments that differ from call to call without changing whom it reaches.
_FREE_TEXT = frozenset(
    {"message", "text", "body", "content", "caption", "html", "subject", "title", "summary", "description", "notes"}
)
_ONCE_ONLY = frozenset({"idempotency_key", "key", "request_id", "delivery_id", "not_after", "due_at", "trace_context"})
# Whose account speaks is never left open: a rule that does not name it is about the usual one.
_USUAL = {"identity_scope": "bot"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    id: UUID
    tool_name: str
    constraints: Constraints
    created_at: datetime
    expires_at: datetime | None = None
    max_uses: int | None = None
    use_count: int = 0
    active: bool = True

    @property
    def specificity(self) -> int:
        return sum(POINTS[constraint["type"]] for constraint in self.constraints.values())

    @property
    def bounded(self) -> bool:
        return self.max_uses is not None or self.expires_at is not None


def is_live(rule: Rule, now: datetime) -> bool:
    unused = rule.max_uses is None or rule.use_count < rule.max_uses
    return rule.active and unused and (rule.expires_at is None or rule.expires_at > now)


def matches(rule: Rule, tool_name: str, tool_args: Mapping[str, Any], now: datetime) -> bool:
    return (
        rule.tool_name == tool_name
        and is_live(rule, now)
        and all(name in rule.constraints or same(tool_args.get(name, usual), usual) for name, usual in _USUAL.items())
        and all(_holds(constraint, name, tool_args) for name, constraint in rule.constraints.items())
    )


def in_precedence(
    rules: Iterable[Rule], tool_name: str, tool_args: Mapping[str, Any], now: datetime
) -> tuple[Rule, ...]:
    """The rules that match, the one to use first."""
    return tuple(sorted((rule for rule in rules if matches(rule, tool_name, tool_args, now)), key=_rank))


def suggested_constraints(tool_args: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For a rule made from a call: the same to the same recipient, whatever the words.

    Whatever is not known to be mere words stays exact: a rule that allows too little is asked about again, one that
    allows too much is not.
    """
    return {name: _suggestion(name, value) for name, value in tool_args.items()}


def _suggestion(name: str, value: Any) -> dict[str, Any]:
    free = name in _FREE_TEXT or name in _ONCE_ONLY
    return {"type": "any"} if free else {"type": "exact", "value": value}


def _rank(rule: Rule) -> tuple[int, bool, float, UUID]:
    return (-rule.specificity, not rule.bounded, -rule.created_at.timestamp(), rule.id)


def _holds(constraint: Mapping[str, Any], name: str, tool_args: Mapping[str, Any]) -> bool:
    if constraint["type"] == "any":
        return True
    if name not in tool_args:
        return False
    given, wanted = tool_args[name], constraint.get("value")
    if constraint["type"] == "exact":
        return same(given, wanted)
    return isinstance(given, str) and isinstance(wanted, str) and fnmatchcase(given, wanted)


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
