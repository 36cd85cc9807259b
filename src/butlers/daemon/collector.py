"""The garbage collector of a process that serves.

What a start makes stays. While hundreds of requests wait for one commit, everything they hold is young, and the
collector would walk through it, and through all that start-up made, again and again: a tenth of what a message costs.
Therefore start-up's objects are set aside, and young ones are looked at less often; most are gone by then.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 20_000  # objects between two looks at the young
_USUAL = gc.get_threshold()  # Python's own numbers, which differ between its versions


@contextmanager
def spared_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *_USUAL[1:])
    try:
        yield
    finally:
        gc.set_threshold(*_USUAL)
        gc.unfreeze()
