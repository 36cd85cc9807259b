"""The contract between a butler and whatever thinks for it.

A runtime takes a prompt and gives an answer; which program or which rules made it is its own affair. The
implementations that run an LLM command line stand in `runtimes/`; the one that needs no network is the `local` runtime.

A `Prompt` keeps what the operator wrote (`system`) apart from what arrived through a door (`text`, `history`,
`context`). Only the first is an instruction. An implementation must keep them apart to the very end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from butlers.clock import Clock


class Speaker(StrEnum):
    USER = "user"
    BUTLER = "butler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One earlier message of the conversation, oldest first. Untrusted, whoever spoke."""

    speaker: Speaker
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question to a runtime."""

    system: str  # instructions of the operator: the only part that is obeyed
    text: str  # what the person wrote: data
    history: tuple[Turn, ...] = ()  # earlier turns, oldest first: data
    context: str = ""  # what other systems add, such as a notify.v1 request as JSON: data


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeResult:
    """The answer and what it cost. What the runtime does not say is None, never zero."""

    text: str
    model: str | None
    input_tokens: int | None  # everything that was read, cached or not
    output_tokens: int | None  # everything that was written, reasoning included
    duration_ms: int
    tool_calls: int

    @property
    def tokens(self) -> int | None:
        """What was read and written together."""
        known = [count for count in (self.input_tokens, self.output_tokens) if count is not None]
        return sum(known) if known else None


class Runtime(Protocol):
    """Raises `TargetUnavailable`, `TimeoutExceeded` or `InternalError`, and nothing else."""

    @property
    def name(self) -> str:
        """As butler.toml spells it: local, codex, claude, opencode."""

    async def run(self, prompt: Prompt, *, timeout_s: float) -> RuntimeResult:
        """Answer within the time, or raise; leaves nothing running either way."""


class LocalRuntime:
    name = "local"

    def __init__(self, butler: str, clock: Clock) -> None:
        self._butler = butler
        self._clock = clock

    async def run(self, prompt: Prompt, *, timeout_s: float) -> RuntimeResult:
        started = self._clock.monotonic()
        text = f"{self._butler} runs without an LLM; nothing was done for this prompt."
        return RuntimeResult(
            text=text,
            model=None,
            input_tokens=None,
            output_tokens=None,
            duration_ms=int((self._clock.monotonic() - started) * 1000),
            tool_calls=0,
        )
