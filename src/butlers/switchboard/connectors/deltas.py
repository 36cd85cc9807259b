"""What one heartbeat adds to the statistics of its connector: the one place where counters are compared. Pure.

A heartbeat carries counters since its process started. The intake compares it with the lives of its process that it
knows, in the order in which heartbeats arrive, and stores the difference in the heartbeat's row. Every rollup is then
a plain sum over rows. `sent_at - uptime_s` tells the lives of a process apart: both are of the connector's own clock,
so a clock that is wrong all the time does no harm.

    first heartbeat   counts from zero; adds nothing if the process is old, for then its past is not known here
    of a known life   adds what its counters grew by; a counter that fell counts from zero
    late, repeated    not older than what is known of its life: adds nothing
    restart           began after its process was last seen, and is younger or has counters that fell: counts from zero
    clock was set     belongs to no life, but is older than the current one, as the passed time allows, and no counter
                      fell: goes on
    nonsense          any other: a glitched uptime, or the only heartbeat of a life that is over: adds nothing; the
                      next heartbeat that makes sense carries what happened
    false restart     a heartbeat of the life before comes, and was sent later: the younger life was a glitch, and what
                      it added is taken off what follows

Moments are microseconds since 1970, and counts are in the order of `COUNTERS`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

COUNTERS = ("messages_ingested", "messages_failed", "source_api_calls", "dedupe_accepted")
ADDED = tuple(f"added_{name}" for name in COUNTERS)
Counts = tuple[int, ...]

SECOND = 1_000_000
# An older process was there before its first heartbeat that is known here, so its counters say nothing about today.
YOUNG_S = 12 * 3600.0
SAME_START = 5 * SECOND  # clocks are corrected a little all the time
LATENESS = 3600 * SECOND  # by which a heartbeat may be late and still tell how much time passed
MOST_LIVES = 8  # remembered of a process
_NOTHING: Counts = (0,) * len(COUNTERS)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one heartbeat says about counters."""

    uptime: int
    sent: int  # by the connector's clock
    received: int  # by the clock of the intake
    counts: Counts

    @property
    def started(self) -> int:
        return self.sent - self.uptime


@dataclass(frozen=True, slots=True, kw_only=True)
class Life(Reading):
    """The furthest heartbeat of one life of a process."""

    overcounted: Counts = _NOTHING  # added by glitches; taken off what follows

    @classmethod
    def at(cls, reading: Reading, overcounted: Counts = _NOTHING) -> Self:
        return cls(
            uptime=reading.uptime,
            sent=reading.sent,
            received=reading.received,
            counts=reading.counts,
            overcounted=overcounted,
        )


Lives = tuple[Life, ...]  # of one process, the current one last


def moment(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def add(lives: Lives, reading: Reading) -> tuple[Lives, Counts]:
    """The lives of a process after one more heartbeat, and what the heartbeat added to each counter."""
    if not lives:
        known = reading.uptime <= YOUNG_S * SECOND
        return (Life.at(reading),), reading.counts if known else _NOTHING
    for place in reversed(range(len(lives))):
        if abs(lives[place].started - reading.started) <= SAME_START:
            return _of_known_life(lives, place, reading)
    return _of_no_known_life(lives, reading)


def to_json(lives: Lives) -> list[dict[str, Any]]:
    return [asdict(life) for life in lives]


def from_json(stored: Iterable[dict[str, Any]] | None) -> Lives:
    return tuple(
        Life(**life | {name: tuple(life[name]) for name in ("counts", "overcounted")}) for life in stored or ()
    )


def _of_known_life(lives: Lives, place: int, reading: Reading) -> tuple[Lives, Counts]:
    life = lives[place]
    same_age_or_less = reading.uptime <= life.uptime
    if same_age_or_less and (reading.uptime < life.uptime or _fell(life, reading)):
        return lives, _NOTHING
    later = lives[place + 1 :]
    if later and reading.sent > later[-1].sent:  # the process never ended: what seemed to come after it was a glitch
        glitched = tuple(sum(counts) for counts in zip(life.overcounted, *(one.counts for one in later), strict=True))
        life, later = replace(life, overcounted=glitched), ()
    moved, added = _grown(life, reading)
    return (*lives[:place], moved, *later), added


def _of_no_known_life(lives: Lives, reading: Reading) -> tuple[Lives, Counts]:
    current = lives[-1]
    fell = _fell(current, reading)
    began_later = reading.started > current.sent or reading.received - reading.uptime > current.received
    if began_later and (fell or reading.uptime <= current.uptime):
        return (*lives, Life.at(reading))[-MOST_LIVES:], reading.counts
    growth = reading.uptime - current.uptime
    possible = 0 <= growth <= reading.received - current.received + LATENESS
    if fell or not (began_later or possible):
        return lives, _NOTHING
    moved, added = _grown(current, reading)
    return (*lives[:-1], moved), added


def _grown(life: Life, reading: Reading) -> tuple[Life, Counts]:
    """A life one heartbeat further."""
    steps = [now - then if now >= then else now for then, now in zip(life.counts, reading.counts, strict=True)]
    added = tuple(max(0, step - over) for step, over in zip(steps, life.overcounted, strict=True))
    left = tuple(max(0, over - step) for step, over in zip(steps, life.overcounted, strict=True))
    return Life.at(reading, overcounted=left), added


def _fell(life: Life, reading: Reading) -> bool:
    return any(now < then for then, now in zip(life.counts, reading.counts, strict=True))
