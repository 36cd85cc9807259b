"""A new version of prompt or model gets a share of the requests, until it proves worse.

    request_id -> hash -> below the share? -> the version on trial        the same request always gets the same
    after each of its answers: failed + unsure + corrected by a person, of the last calls within the window
                               more than max_failure_rate of at least min_requests -> rolled back, at once and for good

A rollback is a row: it holds over restarts and for every process, until an operator resumes the trial, which then is
measured by what comes after. Another version in butler.toml is another trial.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.operations import routing as operations
from butlers.operations.operation import NoArguments
from butlers.operations.routing import ReasonArguments
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.config import CanarySection, LlmRouterSection
from butlers.telemetry import get_logger

log = get_logger("butlers.rollout")

RULE = "rule"
DECIDING_CALLS = 500  # the last ones, however long the window
_SPACE = 2**64
_DEFAULT_REASON = "the operator's decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What one request is asked with."""

    rollout_key: str  # '' for the version in general use
    prompt: str
    model: str | None  # None: what the tier or the runtime says


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How the calls of a version went."""

    requests: int
    failed: int  # no usable answer
    unsure: int  # an answer below the threshold
    corrected: int  # a person sent the message elsewhere

    @property
    def failure_rate(self) -> float:
        return (self.failed + self.unsure + self.corrected) / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """What one question came to."""

    request_id: UUID | None
    version: Version
    model_version: str
    outcome: str = "failed"  # answered | unsure | failed
    duration_ms: int = 0
    error_class: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


def is_chosen(request_id: UUID, rollout_key: str, share: float) -> bool:
    """Whether a request belongs to the share, the same each time it is asked."""
    digest = hashlib.sha256(f"{rollout_key}:{request_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * _SPACE


def is_worse(figures: Figures, canary: CanarySection) -> bool:
    return figures.requests >= canary.min_requests and figures.failure_rate > canary.max_failure_rate


def rollout_key(settings: LlmRouterSection) -> str:
    canary = settings.canary
    return f"{canary.prompt_version or settings.prompt_version}+{canary.model or 'same-model'}" if canary else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    settings: LlmRouterSection
    database: Database
    queries: Queries  # of butlers.switchboard.routing
    clock: Clock
    new_id: Callable[[], UUID]

    @property
    def key(self) -> str:
        return rollout_key(self.settings)

    async def version_for(self, request_id: UUID | None) -> Version:
        canary = self.settings.canary
        stable = Version(rollout_key="", prompt=self.settings.prompt_version, model=None)
        if canary is None or request_id is None or not is_chosen(request_id, self.key, canary.share):
            return stable
        if (await self._standing())["state"] != "active":
            return stable
        prompt = canary.prompt_version or self.settings.prompt_version
        return Version(rollout_key=self.key, prompt=prompt, model=canary.model)

    async def record(self, call: ModelCall) -> None:
        """Put a call on record and decide about its version; a record that fails must not fail a message."""
        try:
            await self.database.execute(
                self.queries.record_model_call,
                self.new_id(),
                call.request_id,
                call.version.rollout_key,
                call.version.prompt,
                call.model_version,
                call.outcome,
                call.error_class,
                call.input_tokens,
                call.output_tokens,
                call.duration_ms,
                self.clock.now(),
            )
            if call.version.rollout_key and self.settings.canary is not None:
                await self._decide(self.settings.canary)
        except Exception as error:
            log.error("a model call was not recorded", error=error, request_id=call.request_id)

    def tools(self, llm: Mapping[str, Any], skills: Sequence[str]) -> list[Tool]:
        """`llm`: which runtime and model are asked, as the status shows them."""

        async def status(_caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
            return wire({"llm": llm, "skills": list(skills), **await self._status()})

        async def rollback(caller: Caller, given: ReasonArguments) -> dict[str, Any]:
            return wire(await self._decided("active", "rolled_back", caller.name, given.reason or _DEFAULT_REASON))

        async def resume(caller: Caller, given: ReasonArguments) -> dict[str, Any]:
            return wire(await self._decided("rolled_back", "active", caller.name, given.reason or _DEFAULT_REASON))

        return [
            Tool.of(operations.STATUS, status),
            Tool.of(operations.ROLLBACK, rollback),
            Tool.of(operations.RESUME, resume),
        ]

    async def _status(self) -> dict[str, Any]:
        """What is in use, what is on trial and how it does."""
        since, canary, tried = self.clock.now() - timedelta(days=1), self.settings.canary, None
        if canary is not None:
            standing, figures = await self._trial(canary)
            tried = {"rollout_key": self.key, **canary.model_dump(), **standing, **_to_wire(figures)}
        history = await self.database.fetch(self.queries.rollout_history, 20)
        return {
            "prompt_version": self.settings.prompt_version,
            "stable": _to_wire(await self._figures("", since)),
            "canary": tried,
            "history": [dict(row) for row in history],
        }

    async def _trial(self, canary: CanarySection) -> tuple[dict[str, Any], Figures]:
        """How the version on trial stands, and the figures that it is judged by."""
        standing = await self._standing()
        since = max(standing["judged_from"], self.clock.now() - timedelta(seconds=canary.window_s))
        return standing, await self._figures(self.key, since)

    async def _standing(self) -> dict[str, Any]:
        row = await self.database.fetchrow(self.queries.rollout_state, self.key)
        if row is None:
            now = self.clock.now()
            if await self.database.fetchval(self.queries.begin_rollout, self.key, now, RULE, "named in butler.toml"):
                await self._log(None, "active", RULE, "named in butler.toml", None)
            row = await self.database.fetchrow(self.queries.rollout_state, self.key)
        return dict(row) if row else {"state": "rolled_back"}

    async def _decide(self, canary: CanarySection) -> None:
        _, figures = await self._trial(canary)
        if is_worse(figures, canary):
            limit = canary.max_failure_rate
            reason = f"{figures.failure_rate:.0%} of {figures.requests} requests went wrong, {limit:.0%} are allowed"
            await self._move("active", "rolled_back", RULE, reason, figures)

    async def _decided(self, previous: str, new: str, by: str, reason: str) -> dict[str, Any]:
        if self.settings.canary is None:
            raise invalid("routing.llm.canary", "no version is on trial")
        await self._standing()
        if not await self._move(previous, new, by, reason, None):
            raise invalid("state", f"the trial is {new} already")
        return await self._status()

    async def _move(self, previous: str, new: str, by: str, reason: str, figures: Figures | None) -> bool:
        now = self.clock.now()
        moved = await self.database.fetchval(self.queries.move_rollout, self.key, previous, new, by, reason, now)
        if moved is not None:
            await self._log(previous, new, by, reason, figures)
        return moved is not None

    async def _log(self, previous: str | None, new: str, by: str, reason: str, figures: Figures | None) -> None:
        counted = _to_wire(figures) if figures is not None else None
        values = (self.new_id(), self.key, previous, new, by, reason, counted, self.clock.now())
        await self.database.execute(self.queries.log_rollout, *values)
        log.warning("routing trial changed", status=new, caller=by)

    async def _figures(self, key: str, since: datetime) -> Figures:
        row = await self.database.fetchrow(self.queries.version_figures, key, since, DECIDING_CALLS)
        return Figures(**dict(row)) if row else Figures(requests=0, failed=0, unsure=0, corrected=0)


def _to_wire(figures: Figures) -> dict[str, Any]:
    return asdict(figures) | {"failure_rate": round(figures.failure_rate, 4)}
