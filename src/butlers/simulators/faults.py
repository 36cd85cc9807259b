"""What the faults of every simulator share: they strike so often, and then they are gone.

Which moment a fault waits for, and what it does there, is each simulator's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedFault:
    times: int | None = 1  # how often it still strikes; None: until removed


FaultT = TypeVar("FaultT", bound=CountedFault)


def strike(waiting: dict[int, FaultT], fault_id: int) -> None:
    """Count one strike."""
    fault = waiting[fault_id]
    if fault.times is None:
        return
    if fault.times <= 1:
        del waiting[fault_id]
    else:
        waiting[fault_id] = replace(fault, times=fault.times - 1)
