"""The watch over the embedded server: one user starts it again, and a server that keeps dying is tried slowly."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from butlers.clock import SystemClock
from butlers.errors import ConfigurationError
from butlers.storage import server_process
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.server_process import Server, ServerState, ServerWatch, pause_before_restart

PATIENT_S = 60.0


class Reports:
    """What a watch said, and a way to wait for it."""

    def __init__(self) -> None:
        self.states: list[ServerState] = []
        self._changed = threading.Condition()

    def __call__(self, state: ServerState) -> None:
        with self._changed:
            self.states.append(state)
            self._changed.notify_all()

    def wait_until_up(self) -> ServerState:
        return self.wait_until(lambda state: state.is_up)

    def wait_until(self, holds: Callable[[ServerState], bool]) -> ServerState:
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.states) and holds(self.states[-1]), PATIENT_S), self.states
            return self.states[-1]


@contextmanager
def watched(server: Server) -> Iterator[Reports]:
    reports = Reports()
    watch = ServerWatch(server, clock=SystemClock(), report=reports)
    watch.start()
    try:
        yield reports
    finally:
        watch.stop()


async def test_exactly_one_of_several_users_starts_a_killed_server_again(tmp_path: Path) -> None:
    users = [EmbeddedPostgres(tmp_path) for _ in range(3)]
    for user in users:
        user.start()
    killed = users[0].pid
    assert killed is not None
    connection = await asyncpg.connect(users[0].uri())
    await connection.execute("create table kept as select 42 as number")
    try:
        with watched(users[0]) as first, watched(users[1]) as second, watched(users[2]) as third:
            os.kill(killed, signal.SIGKILL)
            states = [reports.wait_until_up() for reports in (first, second, third)]

        assert sum(state.restarts for state in states) == 1
        assert users[0].pid != killed
        again = await asyncpg.connect(users[2].uri())  # the same address and password
        assert await again.fetchval("select number from kept") == 42
        await again.close()
    finally:
        connection.terminate()
        for user in users:
            user.stop()


async def test_a_child_that_does_not_notice_the_death_of_its_server_is_ended(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path, durable=False)
    server.start()
    connection = await asyncpg.connect(server.uri())
    child = connection.get_server_pid()
    killed = server.pid
    assert killed is not None
    try:
        os.kill(child, signal.SIGSTOP)  # it keeps the shared memory, and a new server refuses to start
        with watched(server) as reports:
            os.kill(killed, signal.SIGKILL)
            assert reports.wait_until_up().restarts == 1
        assert not Path(f"/proc/{child}/cwd").exists()
    finally:
        connection.terminate()
        server.stop()


class BrokenServer:
    """Dead, and not to be started the first few times."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self._alive = False
        self.tries = 0

    def is_alive(self) -> bool:
        return self._alive

    def revive(self) -> bool:
        self.tries += 1
        if self.tries <= self._failures:
            raise ConfigurationError("no space left", source="here", key="postgres", remedy="free some")
        self._alive = True
        return True


def test_a_start_that_fails_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_FIRST_PAUSE_S", 0.01)
    server = BrokenServer(failures=3)
    with watched(server) as reports:
        reached = reports.wait_until_up()

    assert (server.tries, reached.restarts, reached.problem) == (4, 1, None)
    problems = [state for state in reports.states if state.problem is not None]
    assert {str(state.problem) for state in problems} == {"here: postgres: no space left (free some)"}
    assert [state.deaths for state in reports.states] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert not any(state.is_up for state in problems)


@pytest.mark.parametrize(("had_started", "longest"), [(True, 4.0), (False, 30.0)])
def test_the_pauses_grow_and_have_an_end(had_started: bool, longest: float) -> None:
    pauses = [pause_before_restart(deaths, had_started=had_started) for deaths in range(1, 12)]

    assert pauses[:4] == [0.0, 0.5, 1.0, 2.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == longest


class MortalServer(BrokenServer):
    """Starts every time, and is dead at the next look until it has died so many times."""

    def __init__(self, deaths: int) -> None:
        super().__init__(failures=0)
        self._deaths = deaths

    def is_alive(self) -> bool:
        return self._alive and self.tries > self._deaths


def test_a_server_that_starts_and_dies_again_and_again_never_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_LOOK_EVERY_S", 0.001), ("_FIRST_PAUSE_S", 0.001), ("_LONGEST_PAUSE_S", 0.004)):
        monkeypatch.setattr(server_process, name, seconds)
    with watched(MortalServer(deaths=8)) as reports:
        reports.wait_until(lambda state: state.is_up and state.restarts == 9)
    assert [state.deaths for state in reports.states if not state.is_up] == list(range(1, 10))
    assert max(state.pause_s for state in reports.states) == 0.004


def test_a_server_that_lives_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_LOOK_EVERY_S", 0.001)
    looked = threading.Event()

    class Living(BrokenServer):
        def is_alive(self) -> bool:
            looked.set()
            return True

    server = Living(failures=0)
    with watched(server) as reports:
        assert looked.wait(PATIENT_S)
    assert (server.tries, reports.states) == (0, [])


class StartedByAnother(BrokenServer):
    """Our start fails, and the server lives all the same."""

    def revive(self) -> bool:
        self._alive = True
        return super().revive()


def test_a_server_that_lives_although_our_start_failed_is_up_again() -> None:
    server = StartedByAnother(failures=1)
    with watched(server) as reports:
        reached = reports.wait_until_up()

    assert [(state.is_up, state.problem is None) for state in reports.states] == [
        (False, True),
        (False, False),
        (True, True),
    ]
    assert (server.tries, reached.restarts, reached.deaths, reached.pause_s) == (1, 0, 1, 0.0)


class Unseen(BrokenServer):
    """Nobody can see for a while whether it lives; then it is seen dead."""

    def __init__(self, *problems: OSError) -> None:
        super().__init__(failures=0)
        self._problems = list(problems)

    def is_alive(self) -> bool:
        if self._problems:
            raise self._problems.pop(0)
        return super().is_alive()


def test_a_look_that_fails_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_LOOK_EVERY_S", 0.001)
    full, closed = OSError(errno.EMFILE, "too many open files"), PermissionError(errno.EACCES, "permission denied")
    server = Unseen(full, full, full, closed, closed)
    with watched(server) as reports:
        reports.wait_until(lambda state: state.restarts == 1)

    assert [(state.is_up, state.problem) for state in reports.states] == [
        (True, full),
        (True, closed),
        (False, None),
        (True, None),
    ]


def test_a_report_that_fails_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_LOOK_EVERY_S", 0.001)
    started = threading.Event()

    def report(state: ServerState) -> None:
        if state.restarts:
            started.set()
        raise OSError(errno.ENOSPC, "no space left on device")

    watch = ServerWatch(BrokenServer(failures=0), clock=SystemClock(), report=report)
    watch.start()
    try:
        assert started.wait(PATIENT_S)
    finally:
        watch.stop()
