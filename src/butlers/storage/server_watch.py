"""Keeps the embedded server alive while this process uses it.

    look every fifth of a second --> the process is gone --> pause, if it died soon after its last start --> revive

A thread of its own does it, so a busy event loop does not keep the server down. Each process that uses a server
watches it; `EmbeddedPostgres.revive` lets one of them start it, and the others find it started. Nobody can lose work by
this: what was committed is on disk, and connections that broke are opened again by the pools.

A server that dies again and again waits a few seconds before each start, so that requests are served again soon. One
that does not even start (a full disk, broken files) is tried more and more slowly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from butlers.clock import Clock

_LOOK_EVERY_S = 0.2
_SETTLED_S = 30.0  # a server that lived this long is not in a loop of crashes
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 4.0  # after the death of a server that had started
_LONGEST_AFTER_FAILED_START_S = 30.0


class Server(Protocol):
    """What is watched: `EmbeddedPostgres`."""

    def is_alive(self) -> bool: ...

    def revive(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What the watch last saw and did."""

    is_up: bool = True
    deaths: int = 0  # in a row, each soon after a start; 0 once a server has lived for a while
    restarts: int = 0  # that this process has made
    pause_s: float = 0.0  # until the next start, while it is down
    problem: Exception | None = None  # why the last start failed; of a server that is up, why the last look failed


def pause_before_restart(deaths: int, *, had_started: bool) -> float:
    """Seconds to wait before a start: none after the first death, then doubling up to the longest."""
    longest = _LONGEST_PAUSE_S if had_started else _LONGEST_AFTER_FAILED_START_S
    return 0.0 if deaths <= 1 else float(min(_FIRST_PAUSE_S * 2 ** (deaths - 2), longest))


class ServerWatch:
    """One process's watch over the server it uses."""

    def __init__(self, server: Server, *, clock: Clock, report: Callable[[ServerState], None]) -> None:
        self._server = server
        self._clock = clock
        self._report = report  # called from the watch's thread at every change
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="database watch", daemon=True)
        self.state = ServerState()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the watch; waits for a start that is under way."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        started_at = self._clock.monotonic()
        while not self._ended.wait(_LOOK_EVERY_S):
            try:
                if self._look(started_at):
                    started_at = self._clock.monotonic()
            except Exception as error:  # no file descriptor left, a folder not readable: the next look may succeed
                if type(error) is not type(self.state.problem):  # told once, not five times a second
                    self._change(problem=error)

    def _look(self, started_at: float) -> bool:
        """Look once and act on it; true when the server has come up just now."""
        is_alive = self._server.is_alive()
        if self.state.is_up and self.state.problem is not None:
            self.state = replace(self.state, problem=None)  # the look before failed, this one did not
        if not is_alive:
            return self._restart()
        if not self.state.is_up:  # our start failed, and it lives: another user started it, or it took longer
            self._change(is_up=True, pause_s=0.0, problem=None)
            return True
        if self.state.deaths and self._clock.monotonic() - started_at >= _SETTLED_S:
            self.state = replace(self.state, deaths=0)
        return False

    def _restart(self) -> bool:
        """Wait as long as a server that keeps dying deserves, then try once."""
        deaths = self.state.deaths + 1
        pause = pause_before_restart(deaths, had_started=self.state.is_up)
        self._change(is_up=False, deaths=deaths, pause_s=pause)
        if self._ended.wait(pause):
            return False
        try:
            ours = self._server.revive()
        except Exception as error:  # whatever it is, the watch goes on
            self._change(problem=error)
            return False
        self._change(is_up=True, restarts=self.state.restarts + ours, pause_s=0.0, problem=None)
        return True

    def _change(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]
        with suppress(Exception):  # a report that fails keeps nobody from starting the server
            self._report(self.state)
