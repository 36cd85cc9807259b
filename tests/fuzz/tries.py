"""How often each kind of input is tried, and what counts as bad."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from butlers.clock import SystemClock

TOTAL = int(os.environ.get("BUTLERS_FUZZ", "10000"))
WHOLE_PROOF = 100_000
SHARES = {
    "bytes": 0.25,  # envelopes as spoilt bytes
    "structure": 0.25,  # envelopes of the wrong shape
    "tool_box": 0.12,
    "tools": 0.03,
    "door": 0.02,  # over HTTP
    "updates": 0.12,
    "answers": 0.04,
    "outgoing": 0.04,
    "mime": 0.13,
}
SLOWEST_S = 2.0  # one input; more would be a way to hold everybody up

assert abs(sum(SHARES.values()) - 1) < 1e-9


def tries(kind: str) -> int:
    return max(20, round(TOTAL * SHARES[kind]))


def hostile_messages() -> int:
    """Texts that are routed: all of the whole proof, a twentieth of a smaller one."""
    return TOTAL if TOTAL >= WHOLE_PROOF else TOTAL // 20


def dice_of(kind: str, number: int) -> random.Random:
    return random.Random(f"{kind} {number}")


class Findings:
    """Everything that went wrong in one kind of input, so that one run shows all of it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._clock = SystemClock()
        self._found: dict[str, list[int]] = {}

    def add(self, number: int, what: str) -> None:
        self._found.setdefault(what, []).append(number)

    @contextmanager
    def watch(self, number: int, *allowed: type[BaseException]) -> Iterator[None]:
        began = self._clock.monotonic()
        try:
            yield
        except allowed:
            pass
        except Exception as error:
            self.add(number, f"{type(error).__name__}: {str(error)[:150]} at {_place(error)}")
        if self._clock.monotonic() - began > SLOWEST_S:
            self.add(number, f"took more than {SLOWEST_S:g} s")

    def check(self) -> None:
        lines = [f"{len(numbers)} x {what} (e.g. {numbers[:3]})" for what, numbers in self._found.items()]
        assert not lines, f"{self._kind}:\n" + "\n".join(lines)


Attempt = Callable[[int], Awaitable[Any]]


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename.rpartition('butlers/')[2]}:{trace.tb_lineno}" if trace else "?"
