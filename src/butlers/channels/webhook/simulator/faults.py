"""Faults that a test asks for.

delay         wait, then answer as usual
answer        answer with this status, body and headers; nothing is taken
answer_after  take the message, then answer so
drop_before   close the connection, nothing is taken
drop_after    take the message, then close the connection without an answer
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from butlers.simulators.faults import CountedFault


class FaultKind(StrEnum):
    DELAY = "delay"
    ANSWER = "answer"
    ANSWER_AFTER = "answer_after"
    DROP_BEFORE = "drop_before"
    DROP_AFTER = "drop_after"

    @property
    def takes(self) -> bool:
        """Whether the message is taken all the same."""
        return self not in (FaultKind.ANSWER, FaultKind.DROP_BEFORE)

    @property
    def drops(self) -> bool:
        return self in (FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(CountedFault):
    kind: FaultKind
    recipient: str | None = None  # None: any
    seconds: float = 1.0  # for delay
    status: int = 500  # for the answers
    body: str = '{"error": "the gateway failed"}'
    headers: Mapping[str, str] = field(default_factory=dict)

    def hits(self, recipient: object) -> bool:
        return self.recipient in (None, recipient)


def choose(waiting: Iterable[tuple[int, Fault]], recipient: object) -> list[tuple[int, Fault]]:
    """Every delay that hits, and the oldest of the other faults."""
    hitting = [entry for entry in waiting if entry[1].hits(recipient)]
    delays = [entry for entry in hitting if entry[1].kind is FaultKind.DELAY]
    others = [entry for entry in hitting if entry[1].kind is not FaultKind.DELAY]
    return delays + others[:1]
