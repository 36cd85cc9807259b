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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from butlers.errors import CircuitOpenError, ClassifiedError, OverloadRejected, TargetUnavailable
from butlers.reliability import circuit_breaker
from butlers.reliability.circuit_breaker import Breaker, BreakerPolicy
from butlers.reliability.error_budget import ADMISSION_RULE, Stance, admission_factor
from butlers.reliability.token_bucket import (
    Bucket,
    Draw,
    RefusedBy,
    available,
    full,
    per_minute,
    refill,
    spend,
    take_all,
)

WANTED_FOR = timedelta(seconds=10)  # how long a share is kept for a butler that was refused
_TICK_S = 2e-6  # what a datetime may lose of a wait
_LOOK_AGAIN_S = 1.0  # the hint where nobody knows when there will be room


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
    stances: Mapping[str, Stance] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    buckets: Mapping[str, Bucket]  # as they are afterwards
    shares: Mapping[str, Bucket]  # layer -> this butler's use of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    rule: str
    error: ClassifiedError


GLOBAL = "global"
_ANSWERS = "answers:"  # before the name of a bucket: the part of it that answers take
_BRAKE, _BRAKE_PER_DAY = "brake:", "brake:day:"
_LONGEST_THREAD = 500  # characters that tell threads apart
_DAY_S = 86_400.0


def layers(request: AdmissionRequest) -> tuple[str, str, str]:
    """The buckets a delivery draws from, from the widest to the narrowest."""
    return GLOBAL, f"channel:{request.channel}", recipient_bucket(request)


def share_layers(request: AdmissionRequest) -> tuple[str, ...]:
    """What a delivery's butler has a share of: the wide buckets, and for an answer what answers take of them."""
    wide = layers(request)[:2]
    return (*wide, *(f"{_ANSWERS}{layer}" for layer in wide)) if request.is_answer else wide


def bucket_names(request: AdmissionRequest) -> tuple[str, ...]:
    """Every bucket that an admission has to know."""
    return *layers(request), *share_layers(request), *request.brakes


def brakes(*, correspondent: str, thread: str | None) -> tuple[str, ...]:
    """The buckets that stop a mail loop; a responder that changes its address still answers in the thread."""
    of_thread = (f"{_BRAKE}thread:{thread[:_LONGEST_THREAD]}",) if thread else ()
    return f"{_BRAKE}correspondent:{correspondent}", f"{_BRAKE_PER_DAY}correspondent:{correspondent}", *of_thread


def recipient_bucket(request: AdmissionRequest) -> str:
    return f"recipient:{request.channel}:{request.recipient}"


def throttle_scopes(request: AdmissionRequest) -> tuple[str, str]:
    return f"{request.channel}:{request.recipient}", request.channel


def admit(
    request: AdmissionRequest, *, limits: Limits, breaker: BreakerPolicy, budgets: Budgets, now: datetime
) -> Admitted | Refused:
    for refusal in _objections(request, limits, budgets, now):
        return refusal
    taken = take_all([*_brake_draws(request, limits, budgets, now), *_draws(request, limits, budgets, now)], now)
    unfair = _unfair(request, limits, budgets, now)
    if isinstance(taken, RefusedBy) and taken.name.startswith(_BRAKE):
        return _braked(taken.name, limits.answer_brake)
    if isinstance(taken, RefusedBy):
        tight = budgets.stances.get(request.channel) is Stance.TIGHT
        return _over(taken.name.partition(":")[0], request, _later(taken.retry_after, unfair), tight=tight)
    objection = unfair or _circuit(request, breaker, budgets, now)
    if objection is not None:
        return objection
    return Admitted(buckets=taken.buckets, shares=_paid_shares(request, limits, budgets, now))


def headroom(request: AdmissionRequest, *, limits: Limits, budgets: Budgets, now: datetime) -> dict[str, float]:
    """Tokens left on each layer."""
    names = ("global", "channel", "recipient")
    draws = _draws(request, limits, budgets, now)
    return {name: round(available(draw.bucket, now), 3) for name, draw in zip(names, draws, strict=True)}


def apply(budgets: Budgets, request: AdmissionRequest, admitted: Admitted) -> None:
    """Bring the state to what the next delivery of the same batch meets. In place: batches are long."""
    budgets.in_flight += 1
    budgets.buckets.update(admitted.buckets)
    for layer, bucket in admitted.shares.items():
        budgets.shares.setdefault(layer, {})[request.origin] = bucket


def wanting(request: AdmissionRequest, *, limits: Limits, budgets: Budgets, now: datetime) -> dict[str, Bucket]:
    """The shares of a refused butler, to be kept on record: it wants something."""
    return {layer: _share(layer, request, limits, budgets, now) for layer in share_layers(request)}


def capacity(layer: str, request: AdmissionRequest, limits: Limits, budgets: Budgets) -> float:
    """What a bucket holds at present; less while the channel's error budget burns."""
    layer = layer.removeprefix(_ANSWERS)
    if layer == GLOBAL:
        return limits.global_per_minute
    factor = admission_factor(budgets.stances.get(request.channel, Stance.NORMAL))
    if layer.startswith("channel:"):
        return max(1.0, limits.channel(request.channel) * factor)
    return limits.recipient_per_minute


def _objections(request: AdmissionRequest, limits: Limits, budgets: Budgets, now: datetime) -> Iterator[Refused]:
    for scope in throttle_scopes(request):
        throttled = budgets.throttles.get(scope)
        if throttled is not None and throttled.until > now:
            wait = (throttled.until - now).total_seconds()
            error = TargetUnavailable(f"{request.channel} asked to wait: {throttled.reason}", retry_after=wait)
            yield Refused(rule="throttle", error=error)
    if budgets.in_flight >= limits.max_in_flight:
        text = f"{budgets.in_flight} deliveries are in flight, the limit is {limits.max_in_flight}"
        yield Refused(rule="in_flight", error=OverloadRejected(text, retry_after=_LOOK_AGAIN_S))


def _draws(request: AdmissionRequest, limits: Limits, budgets: Budgets, now: datetime) -> list[Draw]:
    cost = request.cost(limits)
    return [Draw(layer, _bucket(layer, request, limits, budgets, now), cost) for layer in layers(request)]


def _brake_draws(request: AdmissionRequest, limits: Limits, budgets: Budgets, now: datetime) -> list[Draw]:
    return [Draw(name, _brake_bucket(name, limits.answer_brake, budgets, now), 1.0) for name in request.brakes]


def _brake_bucket(name: str, brake: AnswerBrake, budgets: Budgets, now: datetime) -> Bucket:
    by_day = name.startswith(_BRAKE_PER_DAY)
    size, rate = (brake.per_day, brake.per_day / _DAY_S) if by_day else (brake.burst, 1.0 / brake.every_s)
    fresh, stored = full(capacity=size, refill_per_second=rate, now=now), budgets.buckets.get(name)
    return _cut(stored, fresh, now) if stored is not None else fresh


def _braked(name: str, brake: AnswerBrake) -> Refused:
    whom = "in this thread" if name.startswith(f"{_BRAKE}thread:") else "to this correspondent"
    often = f"{brake.per_day:g} a day" if name.startswith(_BRAKE_PER_DAY) else f"{brake.burst:g} in a row"
    text = (
        f"not answered, lest two machines answer each other: {often} automatic answers {whom} are enough; "
        "the mail is kept; raise delivery.answer_brake if a person writes that often"
    )
    return Refused(rule="mail_loop", error=OverloadRejected(text, retryable=False))


def _bucket(layer: str, request: AdmissionRequest, limits: Limits, budgets: Budgets, now: datetime) -> Bucket:
    """The stored bucket, cut to what the limit is now."""
    fresh = per_minute(capacity(layer, request, limits, budgets), now)
    stored = budgets.buckets.get(layer.removeprefix(_ANSWERS))
    return _cut(stored, fresh, now) if stored is not None else fresh


def _cut(stored: Bucket, fresh: Bucket, now: datetime) -> Bucket:
    if (stored.capacity, stored.refill_per_second) == (fresh.capacity, fresh.refill_per_second):
        return stored
    tokens = min(refill(stored, now).tokens, fresh.capacity)
    return replace(fresh, tokens=tokens)


def _over(rule: str, request: AdmissionRequest, retry_after: float | None, *, tight: bool) -> Refused:
    whose = {"global": "all channels", "channel": request.channel, "recipient": "this recipient"}[rule]
    smaller = f" (it is smaller while the error budget burns: {ADMISSION_RULE})" if tight and rule == "channel" else ""
    text = f"the budget of {whose} is used up{smaller}"
    return Refused(rule=rule, error=OverloadRejected(text, retry_after=retry_after))


def _later(retry_after: float | None, unfair: Refused | None) -> float | None:
    """When there is budget and it is this butler's turn."""
    share_after = unfair.error.retry_after if unfair is not None else None
    return max(retry_after, share_after or 0.0) if retry_after is not None else None


def _unfair(request: AdmissionRequest, limits: Limits, budgets: Budgets, now: datetime) -> Refused | None:
    shared = share_layers(request)[-2:]  # an answer yields to other butlers' answers alone
    waits = {layer: _wait_for_share(layer, request, limits, budgets, now) for layer in shared}
    if not (late := [layer.removeprefix(_ANSWERS) for layer, wait in waits.items() if wait > 0]):
        return None
    text = f"{request.origin} has had its share of {late[0]} while other butlers wait for theirs"
    return Refused(rule="fair_share", error=OverloadRejected(text, retry_after=max(waits.values())))


def _wait_for_share(layer: str, request: AdmissionRequest, limits: Limits, budgets: Budgets, now: datetime) -> float:
    """Seconds until the layer holds enough beyond what others were promised; 0 when it does, or within our share."""
    if not (others := _others(layer, request, budgets)):
        return 0.0
    use, total = _share(layer, request, limits, budgets, now), capacity(layer, request, limits, budgets)
    share, had = total / (len(others) + 1), _had(use, now)
    if had < share:
        return 0.0
    bucket = _bucket(layer, request, limits, budgets, now)
    promised = sum(max(0.0, share - _had(other, now)) for other in others)
    lacking = promised + request.cost(limits) - available(bucket, now)
    if lacking <= 0:
        return 0.0
    # What the others have had is forgotten in the meantime, so their promises grow while the layer refills.
    gain = bucket.refill_per_second - sum(other.refill_per_second for other in others)
    until_room = lacking / gain if gain > 0 else math.inf
    return min(until_room, (had - share) / use.refill_per_second) + _TICK_S


def _others(layer: str, request: AdmissionRequest, budgets: Budgets) -> list[Bucket]:
    return [use for name, use in budgets.shares.get(layer, {}).items() if name != request.origin]


def _had(use: Bucket, now: datetime) -> float:
    return use.capacity - available(use, now)


def _share(layer: str, request: AdmissionRequest, limits: Limits, budgets: Budgets, now: datetime) -> Bucket:
    """What a butler has had of a layer, kept as a bucket of the layer's size.

    It is forgotten at the rate of the butler's share: at the layer's whole rate, a butler that takes every token as
    it comes would look as if it had had nothing.
    """
    total = capacity(layer, request, limits, budgets)
    rate = total / 60 / (len(_others(layer, request, budgets)) + 1)
    fresh = full(capacity=total, refill_per_second=rate, now=now)
    stored = budgets.shares.get(layer, {}).get(request.origin)
    return _cut(stored, fresh, now) if stored is not None else fresh


def _paid_shares(request: AdmissionRequest, limits: Limits, budgets: Budgets, now: datetime) -> dict[str, Bucket]:
    cost = request.cost(limits)
    paid = {}
    for layer in share_layers(request):
        share = refill(_share(layer, request, limits, budgets, now), now)
        paid[layer] = spend(share, cost)
    return paid


def _circuit(request: AdmissionRequest, policy: BreakerPolicy, budgets: Budgets, now: datetime) -> Refused | None:
    """The worker draws the probe; here the question is only whether one could be drawn."""
    admission, _ = circuit_breaker.admit(budgets.breakers.get(request.channel, Breaker()), policy, now)
    if isinstance(admission, circuit_breaker.Admitted):
        return None
    text = f"the circuit of {request.channel} is open: {admission.reason}"
    return Refused(rule="breaker", error=CircuitOpenError(text, retry_after=max(admission.retry_after, 0.001)))
