"""The garbage collector of a process that serves.

What a start makes stays. While hundreds of requests wait for one commit, everything they hold is young, and the
collector would walk through it, and through all that start-up made, again and again: a tenth of what a message costs.
Therefore start-up's objects are set aside, and young ones are looked at less often; most are gone by then.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 20_000  # objects between two looks at the young; Python's own number is 700
_holders: list[tuple[int, int, int]] = []  # who serves in this process, and what was usual before


@contextmanager
def spared_collector() -> Iterator[None]:
    """As long as anybody in this process serves."""
    _holders.append(_holders[0] if _holders else gc.get_threshold())
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *_holders[0][1:])
    try:
        yield
    finally:
        usual = _holders.pop()
        if not _holders:
            gc.set_threshold(*usual)
            gc.unfreeze()
