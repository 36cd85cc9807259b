"""What one request may take, by its policy tier: time, calls, tokens (seed 003, "Per-Request Budget Contract").

The clock runs while the request is worked on; a request that waits for a butler to come back spends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from butlers.errors import OverloadRejected, TimeoutExceeded
from butlers.switchboard.config import TierSection, TiersSection
from butlers.switchboard.dispatch.outcome import SegmentOutcome


@dataclass(slots=True, kw_only=True)
class RequestBudget:
    """One request's limits, and what it has used of them; all parts of the request share it."""

    tier: str = "default"
    section: TierSection
    deadline: float | None = None  # on the monotonic clock; None: no limit
    calls: int = 0  # of butlers and models, all that were made for the request so far

    @classmethod
    def begin(cls, tiers: TiersSection, policy_tier: str, now: float, *, calls: int = 0) -> RequestBudget:
        """An unknown tier is worked on like `default`, as it is queued. `calls` were made before it was put off."""
        name = policy_tier if policy_tier in type(tiers).model_fields else "default"
        section: TierSection = getattr(tiers, name)
        deadline = None if section.wall_clock_s is None else now + section.wall_clock_s
        return cls(tier=name, section=section, deadline=deadline, calls=calls)

    def take_call(self) -> bool:
        """Count one call more, or return false when there is none left."""
        if self.calls >= self.section.max_invocations:
            return False
        self.calls += 1
        return True

    def time_left(self, now: float) -> float | None:
        """Seconds until the deadline, never negative; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - now)

    @asynccontextmanager
    async def within_time(self, now: float) -> AsyncIterator[None]:
        """What is done inside ends with the request's time."""
        try:
            async with asyncio.timeout(self.time_left(now)) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutExceeded(
                f"the request's {self.section.wall_clock_s:g} s are used up (tier {self.tier})", retryable=False
            ) from None

    def check_tokens(self, outcomes: Iterable[SegmentOutcome], routing: int = 0) -> None:
        """Raises `OverloadRejected` when the models have spent more tokens than the request may."""
        limit, spent = self.section.max_tokens, routing
        for outcome in outcomes:
            usage = (outcome.result or {}).get("usage")
            tokens = usage.get("tokens") if isinstance(usage, dict) else None
            spent += tokens if type(tokens) is int else 0
        if limit is not None and spent > limit:
            raise OverloadRejected(
                f"the request's {limit} tokens are used up: {spent} were spent (tier {self.tier})", retryable=False
            )
