"""The runtime that needs no network and no model.

Specialists answer people by their own rules (`specialist/local.py`). What comes here is a prompt that only a model
could carry out: a trigger or a schedule without native code. It says so, and pretends nothing.
"""

from __future__ import annotations

from butlers.butler.runtime import Prompt, RuntimeResult
from butlers.clock import Clock


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
