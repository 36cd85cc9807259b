"""The decisions in their order: resolve, permit, wait, pace.

`Judge` looks at one person at a time and needs nothing of the others; `pace` needs the numbers of all. The service
calls `plan`, which is both; the pipeline decides on many machines and paces by the numbers. Both go through this code.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from butlers.contracts.envelope import invalid
from butlers.errors import ValidationError
from butlers.outbound.documents import read_preferences
from butlers.outbound.quiet_hours import QuietHours
from butlers.outbound.throttle import PaceGroup, Timetable, allocate
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


def resolve_channel(levels: Sequence[Opinions], enabled: Sequence[str]) -> str | None:
    """The channel, or None when every enabled one is refused; `levels` from the person to the system."""
    for depth, level in enumerate(levels):
        preferred = (channel for channel in enabled if level.get(channel) is True)
        if chosen := _first_not_refused(preferred, levels[:depth]):
            return chosen
    return _first_not_refused(enabled, levels)


def _first_not_refused(channels: Iterable[str], levels: Sequence[Opinions]) -> str | None:
    return next((c for c in channels if not any(level.get(c) is False for level in levels)), None)


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
    ways = (
        permission_name(direction, channel),
        permission_name(direction, "*"),
        f"messages:*:{channel}",
        "messages:*:*",
    )
    return any(way in granted for way in ways)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: BlockedReason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sendable:
    channel: str
    group: PaceGroup


RecipientDecision = Refused | Sendable


class Decider:
    """Decides about people one by one; remembers the decision on what they have stored."""

    def __init__(self, circumstances: Circumstances) -> None:
        self._given = circumstances
        self._decisions: dict[tuple[str | None, frozenset[str]], RecipientDecision] = {}
        self._groups: dict[QuietHours, PaceGroup | None] = {}

    def __call__(self, preferences: str | None, permissions: frozenset[str]) -> RecipientDecision:
        known = self._decisions.get((preferences, permissions))
        if known is not None:
            return known
        if len(self._decisions) >= _MOST_REMEMBERED:
            self._decisions.clear()
            self._groups.clear()
        decision = self._decide(preferences, permissions)
        self._decisions[preferences, permissions] = decision
        return decision

    def _decide(self, text: str | None, permissions: frozenset[str]) -> RecipientDecision:
        try:
            preferences = read_preferences(text)
        except ValidationError as error:
            # What somebody has refused cannot be known, so nothing is sent.
            return Refused(reason=BlockedReason.NO_CHANNEL, detail=f"cannot be read: {error.message}")
        channel = self._channel(preferences)
        if channel is None:
            return Refused(reason=BlockedReason.NO_CHANNEL, detail="every enabled channel is refused")
        return self._not_permitted(channel, permissions) or self._first_moment(channel, preferences)

    def _channel(self, preferences: Preferences) -> str | None:
        given = self._given
        levels = (preferences, given.organization, given.system.preferences)
        return resolve_channel([level.opinions(given.message.event) for level in levels], given.system.channels)

    def _not_permitted(self, channel: str, permissions: frozenset[str]) -> Refused | None:
        if not is_permitted(self._given.sender_permissions, Direction.SEND, channel):
            return Refused(reason=BlockedReason.SENDER_PERMISSION, detail=permission_name(Direction.SEND, channel))
        if not is_permitted(permissions, Direction.RECEIVE, channel):
            return Refused(
                reason=BlockedReason.RECIPIENT_PERMISSION, detail=permission_name(Direction.RECEIVE, channel)
            )
        return None

    def _first_moment(self, channel: str, preferences: Preferences) -> RecipientDecision:
        quiet = quiet_hours_of(self._given.message, preferences)
        if quiet not in self._groups:
            self._groups[quiet] = self._group(quiet)
        group = self._groups[quiet]
        return no_time(self._given.until) if group is None else Sendable(channel=channel, group=group)

    def _group(self, quiet: QuietHours) -> PaceGroup | None:
        opening = quiet.next_delivery_window(self._given.now, until=self._given.until)
        return None if opening is None else PaceGroup(earliest=opening, quiet=quiet.key)


def quiet_hours_of(message: Message, preferences: Preferences) -> QuietHours:
    """The person's and the policy's together; none when the message is urgent and the policy lets that pass."""
    if message.priority is Priority.URGENT and message.policy.urgent_passes_quiet_hours:
        return QuietHours()
    return preferences.quiet_hours | message.policy.quiet_hours


def no_time(until: datetime) -> Refused:
    return Refused(reason=BlockedReason.THROTTLED, detail=f"no time before {until.isoformat(timespec='seconds')}")


def pace(counts: Mapping[PaceGroup, int], circumstances: Circumstances, *, booked: Mapping[datetime, int]) -> Timetable:
    """The timetable of everybody who may be written to."""
    throttling = circumstances.message.policy.throttling
    return allocate(counts, throttling=throttling, booked=booked, until=circumstances.until)


def plan(
    recipients: Sequence[Recipient], circumstances: Circumstances, *, booked: Mapping[datetime, int]
) -> tuple[Outcome, ...]:
    """What becomes of a message, recipient by recipient, in their order."""
    decide = Decider(circumstances)
    decisions = {recipient.id: decide(recipient.preferences, recipient.permissions) for recipient in recipients}
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
    return Queued(recipient_id=recipient_id, channel=decision.channel, scheduled_at=slot)


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
