"""What a heartbeat adds, decided without a database: each misfortune by itself, and many at once against the truth."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from random import Random

import pytest

from butlers.switchboard.connectors.deltas import (
    MOST_LIVES,
    SECOND,
    YOUNG_S,
    Counts,
    Lives,
    Reading,
    add,
    from_json,
    to_json,
)

HOUR = 3600
DAY = 24 * HOUR


def beat(
    at: float, ingested: int, *, uptime: float | None = None, sent: float | None = None, failed: int = 0
) -> Reading:
    """Received `at` seconds after the process started, and sent then unless told otherwise."""
    return Reading(
        uptime=round((at if uptime is None else uptime) * SECOND),
        sent=round((at if sent is None else sent) * SECOND),
        received=round(at * SECOND),
        counts=(ingested, failed, 0, 0),
    )


LAST = beat(3000, 100)


def added(*readings: Reading) -> list[int]:
    """Messages that each heartbeat adds; the lives go through JSON each time, as between two transactions."""
    lives: Lives = ()
    found: list[int] = []
    for reading in readings:
        lives, counts = add(from_json(json.loads(json.dumps(to_json(lives)))), reading)
        found.append(counts[0])
    return found


@pytest.mark.parametrize(
    ("readings", "wanted"),
    [
        pytest.param([beat(60, 10), beat(120, 25), beat(180, 25)], [10, 15, 0], id="growth"),
        pytest.param([beat(YOUNG_S, 5)], [5], id="first, just young"),
        pytest.param([beat(YOUNG_S + 1, 900), beat(YOUNG_S + 60, 907)], [0, 7], id="first of an old process"),
        pytest.param([beat(60, 10), beat(120, 4), beat(180, 9)], [10, 4, 5], id="counter reset"),
        pytest.param([beat(60, 20), beat(65, 10, uptime=40, sent=40), beat(90, 25)], [20, 0, 5], id="overtaken"),
        pytest.param([beat(60, 20), beat(61, 20, uptime=60, sent=60)], [20, 0], id="sent twice"),
        pytest.param([beat(60, 4), beat(60, 10), beat(60, 4)], [4, 6, 0], id="one moment"),
        pytest.param([beat(3000, 10), beat(4200, 15, uptime=1)], [10, 15], id="restart"),
        pytest.param([beat(3000, 10), beat(4200, 4, uptime=1)], [10, 4], id="restart with less"),
        pytest.param([beat(60, 10), beat(9000, 7, uptime=600)], [10, 7], id="restart after a long silence"),
        pytest.param([beat(3000, 10, sent=3e8), beat(4200, 15, sent=4200)], [10, 5], id="a clock of the future, set"),
        pytest.param([beat(60, 10, sent=0), beat(120, 15, sent=1e9)], [10, 5], id="a clock without a battery, set"),
        pytest.param([beat(3000, 10), beat(3060, 12, sent=0), beat(3120, 13)], [10, 2, 1], id="a clock set for once"),
        pytest.param([beat(600, 10), beat(9 * HOUR, 12, uptime=660)], [10, 2], id="asleep with its computer"),
        # The figures of the review: a late heartbeat of an earlier life, and one glitched uptime.
        pytest.param(
            [LAST, beat(3100, 3, uptime=50), beat(3110, 100, uptime=2990, sent=2990), beat(3160, 4, uptime=110)],
            [100, 3, 0, 1],
            id="late and of an earlier life",
        ),
        pytest.param(
            [LAST, beat(3100, 3, uptime=50), beat(3110, 101, uptime=3040, sent=3040), beat(3160, 4, uptime=110)],
            [100, 3, 1, 1],
            id="the last of an earlier life, late",
        ),
        pytest.param([beat(60, 105), beat(120, 210, uptime=9e6), beat(180, 357)], [105, 0, 252], id="uptime too large"),
        pytest.param(
            [beat(60, 105), beat(120, 210, uptime=900), beat(180, 357), beat(960, 400)],
            [105, 105, 0, 190],  # as much as a late heartbeat before it would allow; made up for later
            id="uptime a little too large",
        ),
        pytest.param(
            [beat(600, 200), beat(660, 210, uptime=1), beat(720, 220), beat(780, 600), beat(840, 610)],
            [200, 210, 0, 190, 10],
            id="uptime too small",
        ),
        pytest.param(
            [beat(60, 3), beat(70, 500, uptime=50_000, sent=40), beat(120, 4)], [3, 0, 1], id="of a life that is over"
        ),
    ],
)
def test_what_a_heartbeat_adds(readings: list[Reading], wanted: list[int]) -> None:
    assert added(*readings) == wanted


def test_a_restart_counts_all_counters_from_zero() -> None:
    lives, _ = add((), beat(60, 10, failed=2))
    _, counts = add(lives, beat(500, 4, uptime=300, failed=3))
    assert counts == (4, 3, 0, 0)


def test_the_lives_of_a_process_have_a_limit_and_so_have_their_numbers() -> None:
    lives: Lives = ()
    for number in range(50):
        lives, counts = add(lives, beat(DAY + number * 60, 2**63 - 1, uptime=1))
        assert counts[0] == 2**63 - 1
    assert len(lives) == MOST_LIVES
    # The limits of what the contract takes: no arithmetic on dates that could overflow.
    add(lives, Reading(uptime=100 * 365 * DAY * SECOND, sent=-62_135_596_800 * SECOND, received=0, counts=(0, 0, 0, 0)))


@dataclass(frozen=True, slots=True)
class Sent:
    reading: Reading
    process: int
    life: int


def heartbeats(random: Random) -> list[Sent]:
    """Days of one connector: restarts, silence, and heartbeats that are late, lost or doubled."""
    made: list[Sent] = []
    now, born, process, life, clock = 0.0, 0.0, 0, 0, random.choice((0, 7200, -3600))
    counts = [0, 0, 0, 0]
    while now < 2 * DAY:
        chance = random.random()
        if chance < 0.04 and now - born > 900:
            born, life, counts = now, life + 1, [0, 0, 0, 0]
            process += random.choice((0, 1))
        elif chance < 0.06:
            now += random.uniform(600, 4 * HOUR)
        counts = [count + random.choice((1, 2, random.randrange(50))) for count in counts]
        for _ in range(random.choice((1, 1, 1, 1, 2))):
            late = random.choice((0.01, 0.01, 0.01, 400, 1500)) * random.random()
            reading = Reading(
                uptime=round((now - born) * SECOND),
                sent=round((now + clock) * SECOND),
                received=round((now + late) * SECOND),
                counts=tuple(counts),
            )
            if random.random() > 0.05 or now == born:  # a restart shows itself
                made.append(Sent(reading, process, life))
        now += random.uniform(60, 300)
    return sorted(made, key=lambda sent: sent.reading.received)


@pytest.mark.parametrize("seed", range(200))
def test_nothing_is_lost_and_nothing_counted_twice(seed: int) -> None:
    """After every heartbeat, the sum is what the lives had done at the furthest heartbeat that came of each."""
    lives: dict[int, Lives] = defaultdict(tuple)
    furthest: dict[int, Counts] = {}
    total = 0
    for sent in heartbeats(Random(seed)):
        lives[sent.process], counts = add(lives[sent.process], sent.reading)
        total += counts[0]
        best = furthest.get(sent.life, (0, 0, 0, 0))
        furthest[sent.life] = max(best, sent.reading.counts)
        assert total == sum(done[0] for done in furthest.values())
