"""How much processor time all that this process started has used, from /proc: Java's and that of its Python workers."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.rollup.memory import descendants

_TICKS = os.sysconf("SC_CLK_TCK")
_TIMES = slice(11, 15)  # after the name: its own and that of children which ended, in user and in system mode


def processor_seconds() -> float:
    return sum(_used(process) for process in descendants(os.getpid()))


def _used(process: int) -> float:
    try:
        after_name = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1]
    except OSError:
        return 0.0  # it ended
    return sum(map(int, after_name.split()[_TIMES])) / _TICKS
