"""Python's garbage collector in a process that serves: what the start has made is not looked at again, and the young
ones are looked at less often.
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
