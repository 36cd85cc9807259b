"""May this delivery be taken on now? (seed 001 section 8) Pure.

    recipient lists -> idempotency -> suppression
    -> provider throttle -> in flight -> mail loop -> global -> channel -> recipient -> fair share -> circuit

The first rule that objects names the refusal; a refused delivery has paid nothing, because the buckets are drawn from
together or not at all. An answer costs a part of what an unasked message costs.

Fair share: the global and the channel budget are shared by the butlers that want something at present. A butler that
has had its share may go on only with what the others have not been promised: `capacity / butlers` each, minus what
each has had. Alone it may use everything. Wanting counts even when it is refused, so a newcomer's share is kept for it
from its first request on. Answers take precedence, so nothing is kept back from them for messages nobody asked for;
among themselves they are shared out in the same way, lest one butler's flood of answers keep another's waiting.

Mail loop: an automatic answer to a mail also draws from buckets of its correspondent and its thread, which hold a few
answers, refill slowly and are kept in the database like the others. A responder that answers every answer empties them
within a few rounds, whatever its mails look like; a person does not write that fast. The refusal is final: the mail was
kept, and once we are silent the loop is over.

The intake decides with the shared state locked, the dry run with the same state merely read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from uuid import UUID

from butlers.channels.registry import canonical_address
from butlers.contracts.envelope import invalid
from butlers.errors import CircuitOpenError, ClassifiedError, OverloadRejected, TargetUnavailable
from butlers.messenger.config import DEFAULT, AnswerBrakeSection, DeliverySection, RecipientsSection
from butlers.messenger.delivery import BRAKE, BRAKE_PER_DAY, AdmissionRequest, Decision, NewDelivery
from butlers.reliability import circuit_breaker
from butlers.reliability.circuit_breaker import Breaker, BreakerState
from butlers.reliability.error_budget import ADMISSION_FACTORS, ADMISSION_RULE, BudgetMode
from butlers.reliability.token_bucket import Bucket, Draw, RefusedBy, refill, spend, take_all

SHARE_HELD_FOR = timedelta(seconds=10)  # how long a share is kept for a butler that was refused
GLOBAL = "global"
_TICK_S = 2e-6  # what a datetime may lose of a wait
_LOOK_AGAIN_S = 1.0  # the hint where the time until there is room is unknown
_ANSWERS = "answers:"  # before the name of a bucket: the part of it that answers take
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientRule:
    rule: str  # suppressed | moved
    moved_to: str | None
    reason: str
    since: datetime


RecipientRules = Mapping[tuple[str, str], RecipientRule]  # (channel, target) -> rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    until: datetime
    reason: str


@dataclass(slots=True, kw_only=True)
class Budgets:
    """The shared state, as of one moment. What is not in it is full, closed or normal."""

    in_flight: int = 0
    buckets: dict[str, Bucket] = field(default_factory=dict)
    shares: dict[str, dict[str, Bucket]] = field(default_factory=dict)  # layer -> butler -> its use
    throttles: Mapping[str, Throttled] = field(default_factory=dict)  # telegram.bot or telegram.bot:7
    breakers: Mapping[str, Breaker] = field(default_factory=dict)
    modes: Mapping[str, BudgetMode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionState:
    """All that an admission looks at, as of one moment."""

    known: dict[str, UUID]  # idempotency key -> delivery
    recipients: RecipientRules
    budgets: Budgets
    busy: frozenset[str] = frozenset()  # conversations in which something is on its way


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    buckets: Mapping[str, Bucket]  # as they are afterwards
    shares: Mapping[str, Bucket]  # layer -> this butler's use of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    rule: str
    error: ClassifiedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The key has a delivery already."""

    delivery_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """It is on record and waits for a person."""

    delivery_id: UUID


def decide(
    new: NewDelivery, policy: DeliverySection, state: AdmissionState, now: datetime
) -> Known | Admitted | Refused:
    """Recipient, idempotency, admission, breaker: in this order, without an effect."""
    if (settled := before_admission(new, policy, state)) is not None:
        return settled
    return admit(moved(new, state.recipients).admission_request, policy, state.budgets, now)


def before_admission(new: NewDelivery, policy: DeliverySection, state: AdmissionState) -> Known | Refused | None:
    """What is settled without a budget. A repeat gets its first answer, also when that answer was what suppressed
    the recipient; the configured lists come before everything.
    """
    channel, context = new.notify.delivery.channel, new.notify.request_context
    there = moved(new, state.recipients).target
    for target in dict.fromkeys((new.target, there)):
        if target is not None and (problem := not_permitted(policy.recipients, channel=channel, target=target)):
            return Refused(rule="not_permitted", error=invalid("delivery.recipient", problem))
    if (known := state.known.get(new.idempotency_key)) is not None:
        return Known(delivery_id=known)
    wrote_at = context.received_at if context is not None and new.notify.delivery.intent != "send" else None
    problem = suppressed(state.recipients.get((channel, there or "")), wrote_at=wrote_at)
    return Refused(rule="suppressed", error=invalid("delivery.recipient", problem)) if problem else None


def not_permitted(lists: RecipientsSection, *, channel: str, target: str) -> str | None:
    """Why the lists forbid this recipient, if they do; deny wins, an empty allow list allows everybody."""
    address = f"{channel}:{target}".lower()
    if any(fnmatchcase(address, pattern.lower()) for pattern in lists.deny):
        return "is on the deny list"
    if lists.allow and not any(fnmatchcase(address, pattern.lower()) for pattern in lists.allow):
        return "is not on the allow list"
    return None


def suppressed(rule: RecipientRule | None, *, wrote_at: datetime | None) -> str | None:
    """Why this recipient is not written to any more, if so; `wrote_at`: when they wrote what is answered."""
    if rule is None or rule.rule != "suppressed":
        return None
    # Whoever blocked us and writes again is back.
    if wrote_at is not None and wrote_at > rule.since:
        return None
    return f"is suppressed since {rule.since:%Y-%m-%d}: {rule.reason}"


def moved(new: NewDelivery, recipients: RecipientRules) -> NewDelivery:
    """Addressed to where the recipient has moved."""
    rule = recipients.get((new.notify.delivery.channel, new.target or ""))
    if rule is None or rule.moved_to is None:
        return new
    decision = Decision(at=rule.since, rule="recipient", verdict="moved", detail="the provider named a new address")
    # Message ids belong to the conversation that was left.
    event = {name: value for name, value in (new.source_event or {}).items() if name != "message_id"}
    there = canonical_address(new.notify.delivery.channel, rule.moved_to)
    decisions = (*new.decisions, decision)
    return replace(new, target=there, address=rule.moved_to, source_event=event or None, decisions=decisions)


def admit(request: AdmissionRequest, policy: DeliverySection, budgets: Budgets, now: datetime) -> Admitted | Refused:
    """Throttles, budgets, shares and the circuit."""
    for scope in (f"{request.channel}:{request.recipient}", request.channel):
        throttled = budgets.throttles.get(scope)
        if throttled is not None and throttled.until > now:
            wait = (throttled.until - now).total_seconds()
            error = TargetUnavailable(f"{request.channel} asked to wait: {throttled.reason}", retry_after=wait)
            return Refused(rule="throttle", error=error)
    if budgets.in_flight >= policy.limits.max_in_flight:
        text = f"{budgets.in_flight} deliveries are in flight, the limit is {policy.limits.max_in_flight}"
        return Refused(rule="in_flight", error=OverloadRejected(text, retry_after=_LOOK_AGAIN_S))
    meter = Meter(request=request, policy=policy, budgets=budgets, now=now)
    cost = meter.cost()
    draws = [Draw(layer, meter.bucket(layer), cost) for layer in layers(request)]
    drawn = take_all([*meter.brakes(), *draws] if request.brakes else draws, now)
    if isinstance(drawn, RefusedBy) and drawn.name.startswith(BRAKE):
        return _braked(drawn.name, policy.answer_brake)
    # An answer yields to other butlers' answers alone: those are its last two layers.
    shares = meter.shares()
    waits = {layer: meter.wait_for_share(layer, shares[layer]) for layer in list(shares)[-2:]}
    if isinstance(drawn, RefusedBy):
        # There must be budget, and it must be this butler's turn.
        retry_after = max(drawn.retry_after, *waits.values()) if drawn.retry_after is not None else None
        return _used_up(drawn.name.partition(":")[0], request, budgets, retry_after)
    if late := [layer.removeprefix(_ANSWERS) for layer, wait in waits.items() if wait > 0]:
        text = f"{request.origin} has had its share of {late[0]} while other butlers wait for theirs"
        return Refused(rule="fair_share", error=OverloadRejected(text, retry_after=max(waits.values())))
    breaker = budgets.breakers.get(request.channel, Breaker())
    if breaker.state is not BreakerState.CLOSED and (refused := _without_probe(request.channel, breaker, policy, now)):
        return refused
    paid = {layer: spend(refill(share, now), cost) for layer, share in shares.items()}
    return Admitted(buckets=drawn.buckets, shares=paid)


def _without_probe(channel: str, breaker: Breaker, policy: DeliverySection, now: datetime) -> Refused | None:
    """The refusal of a circuit in trouble, unless a probe could be drawn; it is the worker that draws one."""
    circuit, _ = circuit_breaker.admit(breaker, policy.breaker.policy(channel), now)
    if not isinstance(circuit, circuit_breaker.Rejected):
        return None
    text = f"the circuit of {channel} is open: {circuit.reason}"
    return Refused(rule="breaker", error=CircuitOpenError(text, retry_after=max(circuit.retry_after, 0.001)))


def headroom(request: AdmissionRequest, policy: DeliverySection, budgets: Budgets, now: datetime) -> dict[str, float]:
    """Tokens left on each layer."""
    meter = Meter(request=request, policy=policy, budgets=budgets, now=now)
    left = [round(refill(meter.bucket(layer), now).tokens, 3) for layer in layers(request)]
    return dict(zip(("global", "channel", "recipient"), left, strict=True))


def layers(request: AdmissionRequest) -> tuple[str, str, str]:
    """The buckets a delivery draws from, from the widest to the narrowest."""
    return GLOBAL, f"channel:{request.channel}", f"recipient:{request.channel}:{request.recipient}"


def share_layers(request: AdmissionRequest) -> tuple[str, ...]:
    """What a delivery's butler has a share of: the wide buckets, and for an answer what answers take of them."""
    channel = f"channel:{request.channel}"
    wide = (GLOBAL, channel)
    return wide if request.intent == "send" else (*wide, f"{_ANSWERS}{GLOBAL}", f"{_ANSWERS}{channel}")


def _braked(name: str, brake: AnswerBrakeSection) -> Refused:
    whom = "in this thread" if name.startswith(f"{BRAKE}thread:") else "to this correspondent"
    limit = f"{brake.per_day} a day" if name.startswith(BRAKE_PER_DAY) else f"{brake.burst} in a row"
    text = (
        f"not answered, so that two machines do not answer each other for ever: the limit of automatic answers {whom}"
        f" is {limit}; the mail is stored; if a person writes that often, raise [delivery.answer_brake] in Messenger's"
        " butler.toml"
    )
    return Refused(rule="mail_loop", error=OverloadRejected(text, retryable=False))


def _used_up(rule: str, request: AdmissionRequest, budgets: Budgets, retry_after: float | None) -> Refused:
    whose = {"global": "all channels", "channel": request.channel, "recipient": "this recipient"}[rule]
    tight = rule == "channel" and budgets.modes.get(request.channel) is BudgetMode.TIGHT
    smaller = f" (it is smaller while the error budget burns: {ADMISSION_RULE})" if tight else ""
    error = OverloadRejected(f"the budget of {whose} is used up{smaller}", retry_after=retry_after)
    return Refused(rule=rule, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """Buckets and shares as one request meets them, by layer."""

    request: AdmissionRequest
    policy: DeliverySection
    budgets: Budgets
    now: datetime

    def cost(self) -> float:
        """Tokens. A reaction disturbs nobody, and must not cost the answer its place."""
        limits, intent = self.policy.limits, self.request.intent
        if intent == "react":
            return 1.0 / max(limits.reaction_multiplier, limits.reply_multiplier)
        return 1.0 if intent == "send" else 1.0 / limits.reply_multiplier

    def bucket(self, layer: str) -> Bucket:
        size = self._capacity(layer)
        return _current(self.budgets.buckets.get(layer.removeprefix(_ANSWERS)), size, size / 60, self.now)

    def brakes(self) -> list[Draw]:
        """What an automatic answer to a mail draws from."""
        brake, draws = self.policy.answer_brake, []
        for name in self.request.brakes:
            by_day = name.startswith(BRAKE_PER_DAY)
            size, rate = (brake.per_day, brake.per_day / _DAY_S) if by_day else (brake.burst, 1.0 / brake.every_s)
            draws.append(Draw(name, _current(self.budgets.buckets.get(name), size, rate, self.now), 1.0))
        return draws

    def shares(self) -> dict[str, Bucket]:
        """What the butler has had of each layer before it pays, kept as a bucket of the layer's size, also when the
        butler is refused: it wants something.

        It is forgotten at the rate of the butler's share: at the layer's whole rate, a butler that takes every token as
        it comes would look as if it had had nothing.
        """
        found, origin = {}, self.request.origin
        for layer in share_layers(self.request):
            size, shares = self._capacity(layer), self.budgets.shares.get(layer, {})
            butlers = len(shares) + (origin not in shares)
            found[layer] = _current(shares.get(origin), size, size / 60 / butlers, self.now)
        return found

    def wait_for_share(self, layer: str, use: Bucket) -> float:
        """Seconds until the layer holds enough beyond what others were promised; 0 within the butler's own share."""
        shares, now = self.budgets.shares.get(layer, {}), self.now
        others = [other for name, other in shares.items() if name != self.request.origin]
        if not others:
            return 0.0
        share, had = use.capacity / (len(others) + 1), use.capacity - refill(use, now).tokens
        if had < share:
            return 0.0
        bucket = self.bucket(layer)
        promised = sum(max(0.0, share - (other.capacity - refill(other, now).tokens)) for other in others)
        lacking = promised + self.cost() - refill(bucket, now).tokens
        if lacking <= 0:
            return 0.0
        # What the others have had is forgotten in the meantime, so their promises grow while the layer refills.
        gain = bucket.refill_per_second - sum(other.refill_per_second for other in others)
        until_room = lacking / gain if gain > 0 else math.inf
        return min(until_room, (had - share) / use.refill_per_second) + _TICK_S

    def _capacity(self, layer: str) -> float:
        """What a bucket holds at present; a channel's holds less while its error budget burns."""
        layer, limits, channel = layer.removeprefix(_ANSWERS), self.policy.limits, self.request.channel
        if layer == GLOBAL:
            return limits.global_per_minute
        if not layer.startswith("channel:"):
            return limits.recipient_per_minute
        configured = limits.channel_per_minute.get(channel, limits.channel_per_minute[DEFAULT])
        return max(1.0, configured * ADMISSION_FACTORS[self.budgets.modes.get(channel, BudgetMode.NORMAL)])


def _current(stored: Bucket | None, capacity: float, refill_per_second: float, now: datetime) -> Bucket:
    """The stored bucket, cut to what the limit is now; a full one where nothing is stored."""
    if stored is not None and (stored.capacity, stored.refill_per_second) == (capacity, refill_per_second):
        return stored
    tokens = capacity if stored is None else min(refill(stored, now).tokens, capacity)
    return Bucket(capacity=capacity, refill_per_second=refill_per_second, tokens=tokens, updated_at=now)
