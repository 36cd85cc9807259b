"""The decisions in their order: resolve, permit, wait, pace.

`Decider` looks at one person at a time and needs nothing of the others; `pace` needs the numbers of all. The service
calls `plan`, which is both; the pipeline decides on many machines and paces by the numbers; the worker decides again
when a message is due; `explain` shows what was decided. All of them go through this code.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from butlers.contracts.envelope import invalid
from butlers.errors import ValidationError
from butlers.outbound.documents import read_preferences
from butlers.outbound.pacing import PaceGroup, Timetable, allocate
from butlers.outbound.quiet_hours import QuietHours
from butlers.outbound.throttle import Throttling
from butlers.outbound.values import (
    Blocked,
    BlockedReason,
    Message,
    Opinions,
    Outcome,
    Preferences,
    Priority,
    Queued,
    Recipient,
    SystemDefaults,
)
from butlers.reliability.retry import GiveUp, RetryPolicy, next_retry


class Rule(StrEnum):
    """Why a channel stays among the candidates, or does not."""

    USER_PREFERENCE = "user-preference"
    PREFERRED_CHANNEL = "preferred-channel"  # the contact's usual one
    ORGANIZATION_DEFAULT = "organization-default"
    SYSTEM_DEFAULT = "system-default"
    ENABLED = "enabled"  # nobody said anything about it
    OPTED_OUT = "opted-out"
    ORGANIZATION_REFUSES = "organization-refuses"
    SYSTEM_REFUSES = "system-refuses"
    NO_ADDRESS = "no-address"
    FAILED_BEFORE = "failed-before"  # this message was tried there in vain
    SENDER_PERMISSION = "sender-permission"
    RECIPIENT_PERMISSION = "recipient-permission"


_PREFERRED_BY = (Rule.USER_PREFERENCE, Rule.ORGANIZATION_DEFAULT, Rule.SYSTEM_DEFAULT)
_REFUSED_BY = (Rule.OPTED_OUT, Rule.ORGANIZATION_REFUSES, Rule.SYSTEM_REFUSES)
# The contact's usual channel stands between what the person and what the organization wants.
_ORDER = (_PREFERRED_BY[0], Rule.PREFERRED_CHANNEL, *_PREFERRED_BY[1:], Rule.ENABLED)
_RANKS = {rule: rank for rank, rule in enumerate(_ORDER)}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One enabled channel, and the rule that remaining or dropped it."""

    channel: str
    rule: Rule
    is_allowed: bool


def resolve_channels(
    levels: Sequence[Opinions],  # of the person, the organization, the system
    enabled: Sequence[str],
    *,
    preferred: str | None = None,
    reachable: Set[str] | None = None,
    failed: Set[str] = frozenset(),
) -> tuple[Candidate, ...]:
    """The enabled channels: those that are kept in the order of preference, then the dropped ones.

    The highest level that has an opinion of a channel decides about it, so a person's opt-out always wins.
    """
    remaining, dropped = [], []
    for place, channel in enumerate(enabled):
        rule, is_allowed = _opinion(channel, levels, preferred)
        if is_allowed and reachable is not None and channel not in reachable:
            rule, is_allowed = Rule.NO_ADDRESS, False
        elif is_allowed and channel in failed:
            rule, is_allowed = Rule.FAILED_BEFORE, False
        candidate = Candidate(channel, rule, is_allowed)
        (remaining.append((_RANKS[rule], place, candidate)) if is_allowed else dropped.append(candidate))
    return (*(candidate for _, _, candidate in sorted(remaining, key=lambda each: each[:2])), *dropped)


def _opinion(channel: str, levels: Sequence[Opinions], preferred: str | None) -> tuple[Rule, bool]:
    for depth, level in enumerate(levels):
        if depth == 1 and channel == preferred:
            break
        if (opinion := level.get(channel)) is not None:
            return (_PREFERRED_BY[depth], True) if opinion else (_REFUSED_BY[depth], False)
    return (Rule.PREFERRED_CHANNEL if channel == preferred else Rule.ENABLED), True


_PERMISSION = re.compile(r"messages:(send|receive|\*):([a-z][a-z0-9_]{0,63}|\*)")


class Direction(StrEnum):
    SEND = "send"
    RECEIVE = "receive"


def permission_name(direction: Direction, channel: str) -> str:
    return f"messages:{direction.value}:{channel}"


def check_permission_name(text: str) -> str:
    """The text itself if it is a permission that can be granted."""
    if _PERMISSION.fullmatch(text) is None:
        raise invalid("permission", "must be messages:{send|receive|*}:{channel|*}")
    return text


def is_permitted(granted: Set[str], direction: Direction, channel: str) -> bool:
    """Whether one of the permissions covers it and none that begins with `!` denies it."""
    ways = (
        permission_name(direction, channel),
        permission_name(direction, "*"),
        f"messages:*:{channel}",
        "messages:*:*",
    )
    return any(way in granted for way in ways) and not any(f"!{way}" in granted for way in ways)


_MOST_REMEMBERED = 200_000  # decisions; equal documents are decided once


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """All that a decision depends on beside the person."""

    message: Message
    now: datetime  # in UTC
    horizon: datetime  # nothing is scheduled from here on
    sender_permissions: frozenset[str]
    organization: Preferences = field(default_factory=Preferences)
    system: SystemDefaults = field(default_factory=SystemDefaults)

    @property
    def until(self) -> datetime:
        return min(self.horizon, self.message.not_after or self.horizon)

    @property
    def sender_may_send(self) -> bool:
        """Whether there is an enabled channel that the sender may send by."""
        granted = self.sender_permissions
        return any(is_permitted(granted, Direction.SEND, channel) for channel in self.system.channels)

    @property
    def bypass(self) -> str:
        """Why quiet hours, mutes and digests do not hold; empty: they do."""
        message = self.message
        if message.event in self.system.critical_events:
            return f"{message.event} is a critical event type"
        if message.priority is Priority.URGENT and message.policy.urgent_passes_quiet_hours:
            return "the message is urgent and its policy lets that pass"
        return ""

    def quiet_hours(self, preferences: Preferences) -> QuietHours:
        """The person's and the policy's together; none where they are bypassed."""
        return QuietHours() if self.bypass else preferences.quiet_hours | self.message.policy.quiet_hours

    def muted_until(self, preferences: Preferences) -> datetime | None:
        return None if self.bypass else preferences.muted_until(self.message.event, self.now)

    def digest_seconds(self, preferences: Preferences) -> int | None:
        """How long the message is collected with others; None: it goes alone."""
        message = self.message
        if self.bypass or message.priority is Priority.URGENT:
            return None
        return preferences.digests.get(message.event) or message.policy.digest_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: BlockedReason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sendable:
    channel: str
    group: PaceGroup
    detail: str = ""


RecipientDecision = Refused | Sendable


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided about a person, with what led to it."""

    result: RecipientDecision
    preferences: Preferences = field(default_factory=Preferences)
    candidates: tuple[Candidate, ...] = ()  # remaining ones first
    quiet: QuietHours = field(default_factory=QuietHours)
    muted_until: datetime | None = None


class Decider:
    """Decides about people one by one; remembers the decision on what they have stored."""

    def __init__(self, circumstances: Circumstances) -> None:
        self._given = circumstances
        self._may_send = {
            channel: is_permitted(circumstances.sender_permissions, Direction.SEND, channel)
            for channel in circumstances.system.channels
        }
        self._decisions: dict[tuple[object, ...], Decision] = {}
        self._openings: dict[tuple[QuietHours, datetime], datetime | None] = {}

    def __call__(self, preferences: str | None, permissions: frozenset[str]) -> RecipientDecision:
        """For a person whose addresses are not known here, as in an audience."""
        return self.decide(Recipient(id="", preferences=preferences, permissions=permissions)).result

    def decide(self, person: Recipient) -> Decision:
        key = (person.preferences, person.permissions, person.reachable, person.preferred, person.failed)
        known = self._decisions.get(key)
        if known is not None:
            return known
        if len(self._decisions) >= _MOST_REMEMBERED:
            self._decisions.clear()
            self._openings.clear()
        self._decisions[key] = decision = self._decide(person)
        return decision

    def _decide(self, person: Recipient) -> Decision:
        given = self._given
        try:
            preferences = read_preferences(person.preferences)
        except ValidationError as error:
            # What the person has refused cannot be known, so nothing is sent.
            detail = f"cannot be read: {error.message}"
            return Decision(result=Refused(reason=BlockedReason.NO_CHANNEL, detail=detail))
        levels = [p.opinions(given.message.event) for p in (preferences, given.organization, given.system.preferences)]
        candidates = resolve_channels(
            levels,
            given.system.channels,
            preferred=person.preferred,
            reachable=person.reachable,
            failed=person.failed,
        )
        candidates, refusal = self._permit(candidates, person.permissions)
        quiet, muted_until = given.quiet_hours(preferences), given.muted_until(preferences)
        result = refusal or self._schedule(candidates[0], quiet, max(given.now, muted_until or given.now))
        return Decision(
            result=result, preferences=preferences, candidates=candidates, quiet=quiet, muted_until=muted_until
        )

    def _permit(
        self, candidates: tuple[Candidate, ...], permissions: frozenset[str]
    ) -> tuple[tuple[Candidate, ...], Refused | None]:
        """The sender's permission before the recipient's. The reason is that of the last step that left a channel."""
        remaining = [each for each in candidates if each.is_allowed]
        dropped = [each for each in candidates if not each.is_allowed]
        if not remaining:
            return candidates, Refused(reason=BlockedReason.NO_CHANNEL, detail=_without_channel(candidates))
        steps = (
            (Direction.SEND, Rule.SENDER_PERMISSION, BlockedReason.SENDER_PERMISSION),
            (Direction.RECEIVE, Rule.RECIPIENT_PERMISSION, BlockedReason.RECIPIENT_PERMISSION),
        )
        for direction, rule, reason in steps:
            first = remaining[0].channel
            allowed = [each for each in remaining if self._is_permitted(permissions, direction, each.channel)]
            dropped += [Candidate(each.channel, rule, False) for each in remaining if each not in allowed]
            if not allowed:
                return tuple(dropped), Refused(reason=reason, detail=permission_name(direction, first))
            remaining = allowed
        return (*remaining, *dropped), None

    def _is_permitted(self, permissions: frozenset[str], direction: Direction, channel: str) -> bool:
        if direction is Direction.SEND:
            return self._may_send[channel]
        return is_permitted(permissions, direction, channel)

    def _schedule(self, chosen: Candidate, quiet: QuietHours, earliest: datetime) -> RecipientDecision:
        given = self._given
        if (quiet, earliest) not in self._openings:
            self._openings[quiet, earliest] = quiet.next_delivery_window(earliest, until=given.until)
        opening = self._openings[quiet, earliest]
        if opening is None:
            return no_time(given.until)
        detail = f"{chosen.rule}; quiet hours are passed: {given.bypass}" if given.bypass else chosen.rule.value
        return Sendable(channel=chosen.channel, group=PaceGroup(earliest=opening, quiet=quiet.key), detail=detail)


def _without_channel(candidates: Sequence[Candidate]) -> str:
    rules = {each.rule for each in candidates}
    if rules <= set(_REFUSED_BY):
        return "every enabled channel is refused"
    return "; ".join(f"{each.channel}: {each.rule}" for each in candidates) or "no channel is enabled"


def no_time(until: datetime) -> Refused:
    return Refused(reason=BlockedReason.THROTTLED, detail=f"no time before {until.isoformat(timespec='seconds')}")


def pace(counts: Mapping[PaceGroup, int], circumstances: Circumstances, *, booked: Mapping[datetime, int]) -> Timetable:
    """The timetable of everybody who may be written to."""
    return allocate(counts, pacing=circumstances.message.policy.pacing, booked=booked, until=circumstances.until)


def plan(
    recipients: Sequence[Recipient], circumstances: Circumstances, *, booked: Mapping[datetime, int]
) -> tuple[Outcome, ...]:
    """What becomes of a message, recipient by recipient, in their order."""
    decider = Decider(circumstances)
    decisions = {recipient.id: decider.decide(recipient).result for recipient in recipients}
    groups = _groups(decisions)
    timetable = pace({group: len(ids) for group, ids in groups.items()}, circumstances, booked=booked)
    ranks = {name: rank for ids in groups.values() for rank, name in enumerate(sorted(ids))}
    return tuple(
        outcome(recipient.id, decisions[recipient.id], ranks.get(recipient.id, 0), timetable, circumstances.until)
        for recipient in recipients
    )


def _groups(decisions: Mapping[str, RecipientDecision]) -> dict[PaceGroup, list[str]]:
    groups: defaultdict[PaceGroup, list[str]] = defaultdict(list)
    for recipient_id, decision in decisions.items():
        if isinstance(decision, Sendable):
            groups[decision.group].append(recipient_id)
    return groups


def outcome(
    recipient_id: str, decision: RecipientDecision, rank: int, timetable: Timetable, until: datetime
) -> Outcome:
    """What the decision and the timetable come to."""
    if isinstance(decision, Refused):
        return Blocked(recipient_id=recipient_id, reason=decision.reason, detail=decision.detail)
    slot = timetable.slot(decision.group, rank)
    if slot is None:
        return outcome(recipient_id, no_time(until), rank, timetable, until)
    return Queued(recipient_id=recipient_id, channel=decision.channel, scheduled_at=slot, detail=decision.detail)


def first_moment(
    moment: datetime, *, quiet: QuietHours, throttling: Throttling, sent: Sequence[datetime], until: datetime
) -> datetime | None:
    """The first moment from `moment` on that is not quiet and has room; None: there is none before `until`."""
    while True:
        opening = quiet.next_delivery_window(moment, until=until)
        if opening is None or opening >= until:
            return None
        moment = throttling.next_free(sent, opening)
        if moment == opening:
            return moment


def schedule_retry(
    policy: RetryPolicy,
    *,
    attempt: int,  # 1-based: the one that has just failed
    failed_at: datetime,
    quiet: QuietHours,  # the recipient's and the policy's
    until: datetime,
    retry_after: float | None = None,  # seconds, the provider's word
) -> datetime | None:
    """The moment of the next attempt, None when there is to be none."""
    decision = next_retry(policy, attempt=attempt, retryable=True, retry_after=retry_after, random=0.0)
    if isinstance(decision, GiveUp):
        return None
    return quiet.next_delivery_window(failed_at + timedelta(seconds=decision.delay), until=until)
