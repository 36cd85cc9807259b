"""How people write down until when they are not to be written to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from butlers.errors import ValidationError
from butlers.outbound.mutes import read_mute_end, read_quiet_range

NOW = datetime(2026, 1, 5, 16, 30, tzinfo=UTC)  # 17:30 in Berlin


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("30m", NOW + timedelta(minutes=30)),
        (" 2H ", NOW + timedelta(hours=2)),
        ("3 d", NOW + timedelta(days=3)),
        ("4w", NOW + timedelta(weeks=4)),
        ("until 18:00", datetime(2026, 1, 5, 17, 0, tzinfo=UTC)),
        ("until 17:00", datetime(2026, 1, 6, 16, 0, tzinfo=UTC)),  # it is past five there: tomorrow
        ("until 17:30", datetime(2026, 1, 6, 16, 30, tzinfo=UTC)),  # now is not ahead
        ("7:05", datetime(2026, 1, 6, 6, 5, tzinfo=UTC)),
        ("until 2026-01-06T09:00:00+01:00", datetime(2026, 1, 6, 8, 0, tzinfo=UTC)),
        ("2026-01-06T09:00:00Z", datetime(2026, 1, 6, 9, 0, tzinfo=UTC)),
    ],
)
def test_a_mute_ends(text: str, end: datetime) -> None:
    assert read_mute_end(text, now=NOW, timezone="Europe/Berlin") == end


def test_a_time_that_the_clocks_skip_is_the_moment_after_the_gap() -> None:
    before = datetime(2026, 3, 28, 20, 0, tzinfo=UTC)
    end = read_mute_end("until 02:30", now=before, timezone="Europe/Berlin")
    assert before < end <= datetime(2026, 3, 29, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    ["", "2", "h", "2 parsecs", "-2h", "0m", "31d", "99999w", "until 25:00", "until", "2026-01-06T09:00:00",
     "x" * 100_000, "2026-01-04T09:00:00Z", "0001-01-01T00:00:00+14:00", "２h", "until 24:00"],
)  # fmt: skip
def test_what_is_no_mute_is_refused(text: str) -> None:
    with pytest.raises(ValidationError) as raised:
        read_mute_end(text, now=NOW, timezone="Europe/Berlin")
    assert [field.field for field in raised.value.fields] == ["duration"]


@pytest.mark.parametrize("text", ["22:00-07:00", " 22:00 - 07:00", "22:00–07:00"])
def test_quiet_hours_are_two_times_of_day(text: str) -> None:
    assert read_quiet_range(text) == ("22:00", "07:00")


@pytest.mark.parametrize("text", ["", "22:00", "22:00-24:00", "22-07", "7:00-9:00-11:00", "2" * 70])
def test_what_are_no_quiet_hours_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        read_quiet_range(text)
