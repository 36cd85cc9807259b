"""Being told to end at a moment when that would do harm."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def stop_signals() -> tuple[signal.Signals, ...]:
    """What tells a run to end; HUP only where nobody decided to ignore it (`nohup`)."""
    usual = (signal.SIGTERM, signal.SIGINT)
    return usual if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*usual, signal.SIGHUP)


@contextmanager
def noted() -> Iterator[Callable[[], bool]]:
    """The process goes on, and can ask whether it was told to end; told again, it ends. Signals come to the main thread
    only.
    """
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told.is_set
        return

    def note(number: int, frame: FrameType | None) -> None:
        handler = before[number]
        if told.is_set() and callable(handler) and number != signal.SIGHUP:  # a terminal that closes says it twice
            handler(number, frame)
        told.set()

    before = {int(number): signal.signal(number, note) for number in stop_signals()}
    try:
        yield told.is_set
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is note:  # Spark has a handler of its own for ctrl-C, which ends its jobs
                signal.signal(number, handler)


@contextmanager
def counting_first() -> Iterator[None]:
    """Told to end, Spark complains, and may fail over its own tidying up: what counts is what came first."""
    root = logging.getLogger()
    root.addFilter(_is_no_stop)
    try:
        yield
    except Exception as problem:
        if (stop := _stop_behind(problem)) is not None:
            raise stop from problem
        raise
    finally:
        root.removeFilter(_is_no_stop)


def _stop_behind(problem: BaseException | None) -> KeyboardInterrupt | None:
    while problem is not None and not isinstance(problem, KeyboardInterrupt):
        problem = problem.__context__
    return problem


def _is_no_stop(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))
