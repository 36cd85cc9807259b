"""What one request may take, by its policy tier: time, calls, tokens (seed 003, "Per-Request Budget Contract").

The clock runs while the request is worked on; a request that waits for a butler to come back spends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from butlers.errors import OverloadRejected, TimeoutExceeded
from butlers.switchboard.config import TierSection, TiersSection
from butlers.switchboard.dispatch.dispatcher import DispatchLimits, Invocations
from butlers.switchboard.dispatch.outcome import SegmentOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBudget:
    tier: str
    section: TierSection
    deadline: float | None  # on the monotonic clock
    invocations: Invocations  # shared by whoever calls butlers or models for this request

    @classmethod
    def begin(cls, tiers: TiersSection, policy_tier: str, now: float, *, calls: int = 0) -> RequestBudget:
        """An unknown tier is worked on like `default`, as it is queued. `calls` were made before it was put off."""
        name = policy_tier if policy_tier in type(tiers).model_fields else "default"
        section: TierSection = getattr(tiers, name)
        deadline = None if section.wall_clock_s is None else now + section.wall_clock_s
        return cls(
            tier=name,
            section=section,
            deadline=deadline,
            invocations=Invocations(max(0, section.max_invocations - calls)),
        )

    @property
    def calls(self) -> int:
        """All that were made for the request so far."""
        return self.section.max_invocations - self.invocations.left

    def limits(self) -> DispatchLimits:
        return DispatchLimits(
            deadline=self.deadline,
            invocations=self.invocations,
            attempts=self.section.attempts,
            route_timeout_s=self.section.route_timeout_s,
        )

    def to_wire(self) -> dict[str, Any]:
        """Which policy was chosen, for the record of the request."""
        return {"tier": self.tier} | self.section.model_dump(exclude_none=True)

    @asynccontextmanager
    async def within_time(self, now: float) -> AsyncIterator[None]:
        """Whatever is done inside ends with the request's time."""
        left = None if self.deadline is None else max(0.0, self.deadline - now)
        try:
            async with asyncio.timeout(left) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutExceeded(
                f"the request's {self.section.wall_clock_s:g} s are used up (tier {self.tier})", retryable=False
            ) from None

    def check_tokens(self, outcomes: Iterable[SegmentOutcome], routing: int = 0) -> None:
        """Whether the models have spent more than the request may."""
        limit = self.section.max_tokens
        spent = routing + sum(map(_tokens, outcomes))
        if limit is not None and spent > limit:
            raise OverloadRejected(
                f"the request's {limit} tokens are used up: {spent} were spent (tier {self.tier})", retryable=False
            )


def _tokens(outcome: SegmentOutcome) -> int:
    usage = (outcome.result or {}).get("usage")
    tokens = usage.get("tokens") if isinstance(usage, dict) else None
    return tokens if type(tokens) is int else 0
