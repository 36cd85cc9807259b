"""Rules that run when a message is accepted: when it fits, something is sent, copied or added.

    id: trig.jen.log.notify.architect
    when: {type: sprint.log, from: agents/Jen/outbox}
    do: [{action: notify, to: agents/architect/inbox, payload: {title: "Jen posted a log", ref: "${env.id}"}}]
    limits: {cooldownMs: 5000}

`notify` sends a new message, `route` a copy of this one to another stream, `enrich` adds tags, headers or fields of the
payload before the message is queued. What a rule sends may make other rules run, never one that has run already on the
way there. `explain` says for a message which rules fit, and why the others do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from butlers.courier.names import compile_pattern

LONGEST_WAY = 8  # rules that one message may set off, one by another
_PLACEHOLDER = re.compile(r"\$\{env((?:\.[A-Za-z0-9_\-]{1,64}){1,8})\}")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class When(Strict):
    """Every condition that is given must hold; `*` in a name stands for whole parts."""

    to: str | None = None
    from_: str | None = Field(default=None, alias="from")
    type: str | None = None
    tags: list[str] = []  # all of them
    headers: dict[str, str | None] = {}  # null: the header is there, whatever its value

    def mismatch(self, envelope: Mapping[str, Any]) -> str | None:
        """The first condition that does not hold."""
        for name, expected in (("to", self.to), ("from", self.from_), ("type", self.type)):
            if expected is not None and not _fits(expected, envelope.get(name)):
                return f"{name} is not {expected}"
        given, headers = envelope.get("tags") or (), envelope.get("headers") or {}
        for tag in self.tags:
            if tag not in given:
                return f"tag {tag} is missing"
        for key, value in self.headers.items():
            if key not in headers:
                return f"header {key} is missing"
            if value is not None and headers[key] != value:
                return f"header {key} is not {value}"
        return None


class Notify(Strict):
    action: Literal["notify"]
    to: str
    type: str = "courier.notify"
    payload: dict[str, Any] = {}
    tags: list[str] = []


class RouteTo(Strict):
    action: Literal["route"]
    to: str


class Enrich(Strict):
    action: Literal["enrich"]
    tags: list[str] = []
    headers: dict[str, str] = {}
    payload: dict[str, Any] = {}  # fields to add; those that are there stay


class Limits(Strict):
    cooldown_ms: int = Field(default=0, ge=0, alias="cooldownMs")


class Rule(Strict):
    id: str = Field(min_length=1, max_length=128)
    when: When
    do: list[Annotated[Notify | RouteTo | Enrich, Field(discriminator="action")]] = Field(min_length=1)
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Fired:
    """What a rule sends because of a message."""

    rule: str
    envelope: dict[str, Any]


@dataclass(slots=True)
class TriggerEngine:
    rules: Sequence[Rule]
    runs: dict[str, int] = field(default_factory=dict)
    suppressed: dict[str, int] = field(default_factory=dict)  # by cooldown
    _ready_at: dict[str, float] = field(default_factory=dict)

    def enrich(self, envelope: dict[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
        """The message with what the rules add, in their order."""
        for rule in self.rules:
            additions = [action for action in rule.do if isinstance(action, Enrich)]
            if additions and rule.id not in path and rule.when.mismatch(envelope) is None:
                for addition in additions:
                    envelope = _enriched(envelope, addition)
        return envelope

    def fire(self, envelope: Mapping[str, Any], now: float, path: tuple[str, ...] = ()) -> Iterator[Fired]:
        """What is to be sent. `path`: the rules that have led to this message."""
        if len(path) >= LONGEST_WAY:
            return
        for rule in self.rules:
            sending = [action for action in rule.do if not isinstance(action, Enrich)]
            if not sending or rule.id in path or rule.when.mismatch(envelope) is not None:
                continue
            if now < self._ready_at.get(rule.id, 0.0):
                self.suppressed[rule.id] = self.suppressed.get(rule.id, 0) + 1
                continue
            self._ready_at[rule.id] = now + rule.limits.cooldown_ms / 1000
            self.runs[rule.id] = self.runs.get(rule.id, 0) + 1
            for number, action in enumerate(sending):
                yield Fired(rule.id, _sent(rule, number, action, envelope))

    def explain(self, envelope: Mapping[str, Any], now: float) -> list[dict[str, Any]]:
        """For each rule: whether it fits, what keeps it back, and what it would send; nothing happens."""
        return [self._explained(rule, envelope, now) for rule in self.rules]

    def _explained(self, rule: Rule, envelope: Mapping[str, Any], now: float) -> dict[str, Any]:
        mismatch = rule.when.mismatch(envelope)
        if mismatch is not None:
            return {"rule": rule.id, "fits": False, "because": mismatch}
        wait = max(0.0, self._ready_at.get(rule.id, 0.0) - now)
        would = [
            action.model_dump(by_alias=True) if isinstance(action, Enrich) else _sent(rule, number, action, envelope)
            for number, action in enumerate(rule.do)
        ]
        return {"rule": rule.id, "fits": True, "cooldownLeftMs": round(wait * 1000), "would": would}


def _fits(expected: str, given: Any) -> bool:
    if not isinstance(given, str):
        return False
    return expected == given or ("*" in expected and compile_pattern(expected)(given))


def _sent(rule: Rule, number: int, action: Notify | RouteTo, envelope: Mapping[str, Any]) -> dict[str, Any]:
    # The same message sets off the same one again: a repeat is a duplicate.
    digest = sha256(f"{envelope['id']}\0{rule.id}\0{number}".encode("utf-8", "surrogatepass")).hexdigest()[:24]
    if isinstance(action, RouteTo):
        return {**envelope, "id": f"{action.action}-{digest}", "to": action.to, "corr": _correlation(envelope)}
    sent = {
        "id": f"{action.action}-{digest}",
        "ts": envelope["ts"],
        "from": "courier",
        "to": action.to,
        "type": action.type,
        "corr": _correlation(envelope),
        "payload": _filled(action.payload, envelope),
    }
    return sent | ({"tags": action.tags} if action.tags else {})


def _correlation(envelope: Mapping[str, Any]) -> Any:
    return envelope.get("corr") or envelope["id"]


def _enriched(envelope: dict[str, Any], addition: Enrich) -> dict[str, Any]:
    added = dict(envelope)
    if addition.tags:
        added["tags"] = list(dict.fromkeys([*(envelope.get("tags") or ()), *addition.tags]))
    if addition.headers:
        added["headers"] = addition.headers | (envelope.get("headers") or {})
    if addition.payload and isinstance(envelope["payload"], Mapping):
        added["payload"] = _filled(addition.payload, envelope) | envelope["payload"]
    return added


def _filled(template: Any, envelope: Mapping[str, Any]) -> Any:
    """The template with `${env.a.b}` replaced; a string that is one placeholder becomes the value itself. What comes in
    by a value is not read again.
    """
    if isinstance(template, Mapping):
        return {key: _filled(value, envelope) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, envelope) for value in template]
    if not isinstance(template, str):
        return template
    if whole := _PLACEHOLDER.fullmatch(template):
        return _value(whole[1], envelope)
    return _PLACEHOLDER.sub(lambda found: _text(_value(found[1], envelope)), template)


def _value(path: str, envelope: Mapping[str, Any]) -> Any:
    value: Any = envelope
    for name in path[1:].split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _text(value: Any) -> str:
    return "" if value is None else str(value)
