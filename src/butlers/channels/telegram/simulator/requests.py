"""What was asked of the simulator: the ground truth for tests. Kept in memory only."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import asdict, dataclass
from typing import Any

KEPT = 1000  # calls remembered for each method


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    sequence: int
    at: str  # RFC 3339, when the call was answered
    method: str
    chat_id: int | str | None
    outcome: str  # accepted | refused | dropped_before | dropped_after
    status: int | None  # None: no answer was sent


class RequestLog:
    def __init__(self) -> None:
        self._sequence = 0
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._calls: defaultdict[str, deque[RequestRecord]] = defaultdict(lambda: deque(maxlen=KEPT))

    def add(self, *, at: str, method: str, chat_id: int | str | None, outcome: str, status: int | None) -> None:
        self._sequence += 1
        self._counts[method][outcome] += 1
        self._calls[method].append(
            RequestRecord(
                sequence=self._sequence,
                at=at,
                method=method,
                chat_id=chat_id,
                outcome=outcome,
                status=status,
            )
        )

    def clear(self) -> None:
        self._counts.clear()
        self._calls.clear()

    def report(self, *, method: str | None, limit: int) -> dict[str, Any]:
        chosen = [record for name, calls in self._calls.items() if method in (None, name) for record in calls]
        latest = sorted(chosen, key=lambda record: record.sequence)[-limit:]
        return {
            "counts": {name: dict(counts) for name, counts in self._counts.items()},
            "requests": [asdict(record) for record in latest],
        }
