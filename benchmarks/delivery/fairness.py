"""What a noisy origin costs a quiet one.

The quiet origin offers r messages a second, first alone, then beside an origin that offers 100 times as much. Together
they stay below saturation: beyond it every queue grows, and the question is another one. The provider takes 50 ms here,
so that messages compete for the places of the provider calls and not only for the processor.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from itertools import count
from typing import Any

from benchmarks.chaos.assessment import percentile
from benchmarks.delivery.instant import InstantChannel
from benchmarks.delivery.load import open_loop
from benchmarks.delivery.plane import Plane
from butlers.clock import Clock

NOISE = 100  # times as much
LOAD = 0.6  # share of the capacity, both together
PROVIDER_S = 0.05
RECORD_S = 0.025  # a worker is busy so much longer: until what the provider said is on record
BUSY = 32  # workers that the load would keep busy if it were all the capacity
GOAL = 2.0


async def measure_fairness(plane: Plane, *, capacity: float, seconds: float, seed: int, clock: Clock) -> dict[str, Any]:
    # The capacity was measured with a provider that answers at once, and in batches as large as the crowd; those who
    # come one by one cost more.
    rate = LOAD * min(capacity, BUSY / (PROVIDER_S + RECORD_S)) / (NOISE + 1)
    dice, numbers = random.Random(seed), count(10_000_000, 10_000_000)
    InstantChannel.seconds = PROVIDER_S
    quiet, noisy = partial(plane.submit, origin="health"), partial(plane.submit, origin="finance")

    async def offered(submit: Any, per_second: float) -> list[float]:
        own = random.Random(dice.random())
        return await open_loop(submit, rate=per_second, seconds=seconds, first=next(numbers), clock=clock, dice=own)

    alone = await offered(quiet, rate)
    beside, noise = await asyncio.gather(offered(quiet, rate), offered(noisy, rate * NOISE))
    InstantChannel.seconds = 0.0
    p95_alone, p95_beside = percentile(alone, 0.95), percentile(beside, 0.95)
    return {
        "rate_quiet": round(rate, 2),
        "rate_noisy": round(rate * NOISE, 1),
        "samples": [len(alone), len(beside)],
        "p95_alone_ms": _ms(p95_alone),
        "p95_with_noise_ms": _ms(p95_beside),
        "p95_of_noise_ms": _ms(percentile(noise, 0.95)),
        "ratio": round(p95_beside / p95_alone, 2) if p95_alone and p95_beside else None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
