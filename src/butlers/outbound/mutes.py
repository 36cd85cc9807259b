"""How long a person is not to be written to, and the quiet hours of every day, as people write them. Pure.

    30m  2h  3d  1w          from now on
    until 18:00              the next time it is 18:00 where the person is
    2026-01-31T09:00:00Z     until that moment

Texts come from chats, so each is read in one pass and refused when it is longer than a phrase like these.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from butlers.contracts.envelope import invalid
from butlers.outbound.quiet_hours import zone

LONGEST_MUTE = timedelta(days=30)
_LONGEST_TEXT = 64  # characters
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_DURATION = re.compile(r"([0-9]{1,5}) ?([mhdw])")
_UNTIL = re.compile(r"(?:until )?([01][0-9]|2[0-3]|[0-9]):([0-5][0-9])")
_RANGE = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])")
_FORMS = "must be a duration like 30m, 2h or 3d, or until 18:00"


def read_mute_end(text: str, *, now: datetime, timezone: str) -> datetime:
    """The moment at which the mute ends, in UTC; `timezone` is the person's, of the IANA list."""
    phrase = " ".join(text[: _LONGEST_TEXT + 1].casefold().split())
    if len(text) > _LONGEST_TEXT:
        raise invalid("duration", _FORMS)
    if (duration := _DURATION.fullmatch(phrase)) is not None:
        return check_mute_end(now + int(duration[1]) * _UNITS[duration[2]], now=now)
    if (clock := _UNTIL.fullmatch(phrase)) is not None:
        return check_mute_end(_next_clock(int(clock[1]), int(clock[2]), now, timezone), now=now)
    return check_mute_end(_moment(text.strip().removeprefix("until ")), now=now)


def check_mute_end(until: datetime, *, now: datetime, field: str = "duration") -> datetime:
    """The same moment in UTC if it lies ahead, and not too far."""
    if until <= now:
        raise invalid(field, "must end in the future")
    if until - now > LONGEST_MUTE:
        raise invalid(field, f"must not be longer than {LONGEST_MUTE.days} days")
    return until.astimezone(UTC)


def read_quiet_range(text: str) -> tuple[str, str]:
    """The start and the end of `22:00-07:00`."""
    found = _RANGE.fullmatch("".join(text.split()).replace("\N{EN DASH}", "-")) if len(text) <= _LONGEST_TEXT else None
    if found is None:
        raise invalid("quiet_hours", "must be two times of day like 22:00-07:00")
    return f"{found[1]}:{found[2]}", f"{found[3]}:{found[4]}"


def _next_clock(hour: int, minute: int, now: datetime, timezone: str) -> datetime:
    """The first moment after now at which a clock there shows the time."""
    place = zone(timezone)
    today = now.astimezone(place).date()
    for days in (0, 1):
        moment = datetime(today.year, today.month, today.day, hour, minute, tzinfo=place) + timedelta(days=days)
        if moment.astimezone(UTC) > now:
            return moment.astimezone(UTC)
    raise invalid("duration", _FORMS)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise invalid("duration", _FORMS) from None
    if moment.tzinfo is None:
        raise invalid("duration", "a moment must carry its offset, like 2026-01-31T09:00:00+01:00")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise invalid("duration", _FORMS) from None
