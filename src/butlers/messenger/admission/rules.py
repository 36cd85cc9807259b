"""May this delivery be taken on now? (seed 001 section 8)

    provider throttle -> in flight -> mail loop -> global -> channel -> recipient -> fair share -> circuit

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

Everything here is a function of its arguments. The intake calls it with the shared state locked, the dry run with the
same state merely read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from butlers.errors import CircuitOpenError, ClassifiedError, OverloadRejected, TargetUnavailable
from butlers.reliability import circuit_breaker
from butlers.reliability.circuit_breaker import Breaker, BreakerPolicy
from butlers.reliability.error_budget import ADMISSION_RULE, BudgetMode, admission_factor
from butlers.reliability.token_bucket import Bucket, Draw, RefusedBy, available, refill, spend, take_all

WANTED_FOR = timedelta(seconds=10)  # how long a share is kept for a butler that was refused
GLOBAL = "global"
_TICK_S = 2e-6  # what a datetime may lose of a wait
_LOOK_AGAIN_S = 1.0  # the hint where the time until there is room is unknown
_ANSWERS = "answers:"  # before the name of a bucket: the part of it that answers take
_BRAKE, _BRAKE_PER_DAY = "brake:", "brake:day:"
_LONGEST_THREAD = 500  # characters that tell threads apart
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerBrake:
    """How often one correspondent, or one thread, is answered by mail."""

    burst: float = 4.0  # answers in a row
    every_s: float = 600.0  # seconds after which one more is possible
    per_day: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_in_flight: int = 100
    global_per_minute: float = 60.0
    channel_per_minute: Mapping[str, float] = field(default_factory=dict)  # "telegram.bot", with "default"
    recipient_per_minute: float = 10.0
    reply_multiplier: float = 2.0
    reaction_multiplier: float = 50.0
    answer_brake: AnswerBrake = AnswerBrake()

    def channel(self, name: str) -> float:
        return self.channel_per_minute.get(name, self.channel_per_minute.get("default", 30.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """What the rules need to know about a delivery."""

    channel: str  # with its scope: telegram.bot
    recipient: str
    origin: str
    intent: str
    brakes: tuple[str, ...] = ()  # the buckets of an automatic answer to a mail

    @property
    def is_answer(self) -> bool:
        return self.intent != "send"

    def cost(self, limits: Limits) -> float:
        if self.intent == "react":  # it disturbs nobody, and must not cost the answer its place
            return 1.0 / max(limits.reaction_multiplier, limits.reply_multiplier)
        return 1.0 / limits.reply_multiplier if self.is_answer else 1.0


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
class Admitted:
    buckets: Mapping[str, Bucket]  # as they are afterwards
    shares: Mapping[str, Bucket]  # layer -> this butler's use of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    rule: str
    error: ClassifiedError


def admit(
    request: AdmissionRequest, *, limits: Limits, breaker: BreakerPolicy, budgets: Budgets, now: datetime
) -> Admitted | Refused:
    for scope in throttle_scopes(request):
        throttled = budgets.throttles.get(scope)
        if throttled is not None and throttled.until > now:
            wait = (throttled.until - now).total_seconds()
            error = TargetUnavailable(f"{request.channel} asked to wait: {throttled.reason}", retry_after=wait)
            return Refused(rule="throttle", error=error)
    if budgets.in_flight >= limits.max_in_flight:
        text = f"{budgets.in_flight} deliveries are in flight, the limit is {limits.max_in_flight}"
        return Refused(rule="in_flight", error=OverloadRejected(text, retry_after=_LOOK_AGAIN_S))
    cost = request.cost(limits)
    draws = [Draw(layer, _bucket(layer, request, limits, budgets, now), cost) for layer in layers(request)]
    drawn = take_all([*_brake_draws(request, limits.answer_brake, budgets, now), *draws], now)
    if isinstance(drawn, RefusedBy) and drawn.name.startswith(_BRAKE):
        return _braked(drawn.name, limits.answer_brake)
    # An answer yields to other butlers' answers alone: those are its last two layers.
    shared = share_layers(request)
    waits = {layer: _wait_for_share(layer, request, limits, budgets, now) for layer in shared[-2:]}
    if isinstance(drawn, RefusedBy):
        # There must be budget, and it must be this butler's turn.
        retry_after = max(drawn.retry_after, *waits.values()) if drawn.retry_after is not None else None
        return _used_up(drawn.name.partition(":")[0], request, budgets, retry_after)
    if late := [layer.removeprefix(_ANSWERS) for layer, wait in waits.items() if wait > 0]:
        text = f"{request.origin} has had its share of {late[0]} while other butlers wait for theirs"
        return Refused(rule="fair_share", error=OverloadRejected(text, retry_after=max(waits.values())))
    # The worker draws the probe; here the question is only whether one could be drawn.
    circuit, _ = circuit_breaker.admit(budgets.breakers.get(request.channel, Breaker()), breaker, now)
    if isinstance(circuit, circuit_breaker.Rejected):
        text = f"the circuit of {request.channel} is open: {circuit.reason}"
        return Refused(rule="breaker", error=CircuitOpenError(text, retry_after=max(circuit.retry_after, 0.001)))
    shares = wanting(request, limits=limits, budgets=budgets, now=now)
    return Admitted(
        buckets=drawn.buckets, shares={layer: spend(refill(share, now), cost) for layer, share in shares.items()}
    )


def headroom(request: AdmissionRequest, *, limits: Limits, budgets: Budgets, now: datetime) -> dict[str, float]:
    """Tokens left on each layer."""
    buckets = [_bucket(layer, request, limits, budgets, now) for layer in layers(request)]
    left = [round(available(bucket, now), 3) for bucket in buckets]
    return dict(zip(("global", "channel", "recipient"), left, strict=True))


def apply(budgets: Budgets, request: AdmissionRequest, admitted: Admitted) -> None:
    """Bring the state to what the next delivery of the same batch meets. In place: batches are long."""
    budgets.in_flight += 1
    budgets.buckets.update(admitted.buckets)
    for layer, bucket in admitted.shares.items():
        budgets.shares.setdefault(layer, {})[request.origin] = bucket


def wanting(request: AdmissionRequest, *, limits: Limits, budgets: Budgets, now: datetime) -> dict[str, Bucket]:
    """The butler's shares before it pays. Those of a refused butler are kept on record: it wants something."""
    return {layer: _share(layer, request, limits, budgets, now) for layer in share_layers(request)}


def layers(request: AdmissionRequest) -> tuple[str, str, str]:
    """The buckets a delivery draws from, from the widest to the narrowest."""
    return GLOBAL, f"channel:{request.channel}", f"recipient:{request.channel}:{request.recipient}"


def share_layers(request: AdmissionRequest) -> tuple[str, ...]:
    """What a delivery's butler has a share of: the wide buckets, and for an answer what answers take of them."""
    channel = f"channel:{request.channel}"
    return (GLOBAL, channel, f"{_ANSWERS}{GLOBAL}", f"{_ANSWERS}{channel}") if request.is_answer else (GLOBAL, channel)


def throttle_scopes(request: AdmissionRequest) -> tuple[str, str]:
    return f"{request.channel}:{request.recipient}", request.channel


def brakes(*, correspondent: str, thread: str | None) -> tuple[str, ...]:
    """The buckets that stop a mail loop; a responder that changes its address still answers in the thread."""
    of_thread = (f"{_BRAKE}thread:{thread[:_LONGEST_THREAD]}",) if thread else ()
    return f"{_BRAKE}correspondent:{correspondent}", f"{_BRAKE_PER_DAY}correspondent:{correspondent}", *of_thread


def _brake_draws(request: AdmissionRequest, brake: AnswerBrake, budgets: Budgets, now: datetime) -> list[Draw]:
    draws = []
    for name in request.brakes:
        by_day = name.startswith(_BRAKE_PER_DAY)
        size, rate = (brake.per_day, brake.per_day / _DAY_S) if by_day else (brake.burst, 1.0 / brake.every_s)
        draws.append(Draw(name, _current(budgets.buckets.get(name), size, rate, now), 1.0))
    return draws


def _braked(name: str, brake: AnswerBrake) -> Refused:
    whom = "in this thread" if name.startswith(f"{_BRAKE}thread:") else "to this correspondent"
    limit = f"{brake.per_day:g} a day" if name.startswith(_BRAKE_PER_DAY) else f"{brake.burst:g} in a row"
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


def _wait_for_share(layer: str, request: AdmissionRequest, limits: Limits, budgets: Budgets, now: datetime) -> float:
    """Seconds until the layer holds enough beyond what others were promised; 0 when it does, or within our share."""
    others = [use for name, use in budgets.shares.get(layer, {}).items() if name != request.origin]
    if not others:
        return 0.0
    use = _share(layer, request, limits, budgets, now)
    share, had = use.capacity / (len(others) + 1), use.capacity - available(use, now)
    if had < share:
        return 0.0
    bucket = _bucket(layer, request, limits, budgets, now)
    promised = sum(max(0.0, share - (other.capacity - available(other, now))) for other in others)
    lacking = promised + request.cost(limits) - available(bucket, now)
    if lacking <= 0:
        return 0.0
    # What the others have had is forgotten in the meantime, so their promises grow while the layer refills.
    gain = bucket.refill_per_second - sum(other.refill_per_second for other in others)
    until_room = lacking / gain if gain > 0 else math.inf
    return min(until_room, (had - share) / use.refill_per_second) + _TICK_S


def _bucket(layer: str, request: AdmissionRequest, limits: Limits, budgets: Budgets, now: datetime) -> Bucket:
    size = _capacity(layer, request, limits, budgets)
    return _current(budgets.buckets.get(layer.removeprefix(_ANSWERS)), size, size / 60, now)


def _share(layer: str, request: AdmissionRequest, limits: Limits, budgets: Budgets, now: datetime) -> Bucket:
    """What a butler has had of a layer, kept as a bucket of the layer's size.

    It is forgotten at the rate of the butler's share: at the layer's whole rate, a butler that takes every token as
    it comes would look as if it had had nothing.
    """
    size, shares = _capacity(layer, request, limits, budgets), budgets.shares.get(layer, {})
    butlers = len(shares) + (request.origin not in shares)
    return _current(shares.get(request.origin), size, size / 60 / butlers, now)


def _capacity(layer: str, request: AdmissionRequest, limits: Limits, budgets: Budgets) -> float:
    """What a bucket holds at present; a channel's holds less while its error budget burns."""
    layer = layer.removeprefix(_ANSWERS)
    if layer == GLOBAL:
        return limits.global_per_minute
    if not layer.startswith("channel:"):
        return limits.recipient_per_minute
    factor = admission_factor(budgets.modes.get(request.channel, BudgetMode.NORMAL))
    return max(1.0, limits.channel(request.channel) * factor)


def _current(stored: Bucket | None, capacity: float, refill_per_second: float, now: datetime) -> Bucket:
    """The stored bucket, cut to what the limit is now; a full one where nothing is stored."""
    if stored is not None and (stored.capacity, stored.refill_per_second) == (capacity, refill_per_second):
        return stored
    tokens = capacity if stored is None else min(refill(stored, now).tokens, capacity)
    return Bucket(capacity=capacity, refill_per_second=refill_per_second, tokens=tokens, updated_at=now)
