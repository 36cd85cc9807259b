"""Work in a worker process: bounded in time and memory, alone, and gone with its parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from butlers.errors import TargetUnavailable
from butlers.isolation.isolate import FailureKind, Isolate, IsolationFailed, IsolationLimits
from tests.integration.isolation import functions

LIMITS = IsolationLimits(deadline_s=60.0, cpu_s=1, memory_bytes=128 * 1024 * 1024, answer_bytes=1024 * 1024)


@pytest.fixture
async def isolate() -> AsyncIterator[Isolate]:
    isolate = Isolate(functions.ALL, limits=LIMITS)
    yield isolate
    await isolate.close()


async def answer(isolate: Isolate, function: Callable[[bytes], Any], data: bytes = b"") -> Any:
    return json.loads(await isolate.run(function, data))


async def failure(isolate: Isolate, function: Callable[[bytes], Any]) -> IsolationFailed:
    with pytest.raises(IsolationFailed) as failed:
        await isolate.run(function, b"")
    return failed.value


def is_running(pid: int) -> bool:
    """A zombie, which nobody has waited for, has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


async def test_every_call_has_its_cpu_whatever_the_worker_has_done_before(isolate: Isolate) -> None:
    left = [await answer(isolate, functions.work) for _ in range(5)]
    assert min(left) > LIMITS.cpu_s - 0.1


async def test_the_worker_is_warm_between_calls(isolate: Isolate) -> None:
    first = await answer(isolate, functions.length, b"x" * 5_000_000)
    assert first["length"] == 5_000_000
    assert (await answer(isolate, functions.length))["pid"] == first["pid"] != os.getpid()


async def test_the_worker_inherits_nothing(isolate: Isolate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUTLER_TELEGRAM_TOKEN", "a secret")
    found = await answer(isolate, functions.surroundings)
    assert set(found["environment"]) <= {"LC_ALL", "LC_CTYPE"}
    assert len(found["descriptors"]) <= 6  # three of nothing, two pipes, and the listing itself
    assert found["folder"] == "/"


@pytest.mark.parametrize(
    ("function", "kind", "reason"),
    [
        (functions.spin, FailureKind.DEADLINE, "more than 1 s of CPU"),
        (functions.eat, FailureKind.MEMORY, "more than 128 MiB of memory"),
        (functions.die, FailureKind.CRASHED, "ended by SIGKILL"),
        (functions.leave, FailureKind.CRASHED, "exit 7"),
        (functions.fail, FailureKind.CRASHED, "raised LookupError"),
        (functions.talk_too_much, FailureKind.CRASHED, "no valid answer"),
    ],
)
async def test_a_call_that_cannot_finish_says_why_and_the_next_one_is_served(
    isolate: Isolate, function: Callable[[bytes], Any], kind: FailureKind, reason: str
) -> None:
    failed = await failure(isolate, function)
    assert failed.kind is kind
    assert reason in failed.message
    assert "stranger" not in failed.message
    assert (await answer(isolate, functions.length, b"abc"))["length"] == 3


async def test_a_call_that_hangs_is_killed_at_its_deadline() -> None:
    isolate = Isolate(functions.ALL, limits=IsolationLimits(deadline_s=0.5))
    pid = (await answer(isolate, functions.length))["pid"]
    failed = await failure(isolate, functions.hang)
    assert (failed.kind, failed.message) == (FailureKind.DEADLINE, "it took longer than 0.5 s")
    assert not is_running(pid)
    await isolate.close()


async def test_the_loop_goes_on_while_the_worker_works(isolate: Isolate) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    await answer(isolate, functions.length)
    ticking = asyncio.create_task(tick())
    await failure(isolate, functions.spin)
    ticking.cancel()
    assert ticks > 10


async def test_a_caller_that_is_cancelled_leaves_no_answer_behind(isolate: Isolate) -> None:
    await answer(isolate, functions.length)
    waiting = asyncio.create_task(isolate.run(functions.hang, b""))
    await asyncio.sleep(0)  # let it begin
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await answer(isolate, functions.length, b"ab"))["length"] == 2


async def test_what_a_function_prints_does_not_reach_the_parent(isolate: Isolate) -> None:
    assert await answer(isolate, functions.chatter) == "said"


async def test_a_closed_isolate_leaves_no_process_and_starts_none() -> None:
    isolate = Isolate(functions.ALL, limits=LIMITS)
    pid = (await answer(isolate, functions.length))["pid"]
    await isolate.close()
    assert not is_running(pid)
    with pytest.raises(TargetUnavailable, match="stopping"):
        await isolate.run(functions.length, b"")


async def test_a_call_that_a_stop_ends_is_not_the_fault_of_its_data() -> None:
    isolate = Isolate(functions.ALL, limits=LIMITS)
    await answer(isolate, functions.length)
    waiting = asyncio.create_task(isolate.run(functions.hang, b""))
    await asyncio.sleep(0)  # let it begin
    await isolate.close()
    with pytest.raises(TargetUnavailable, match="stopping"):
        await waiting


@pytest.mark.parametrize("why", ["no program", "no python", "too slow"])
async def test_a_worker_that_does_not_start_is_not_the_fault_of_the_data(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate = Isolate(functions.ALL, limits=replace(LIMITS, start_s=0.0) if why == "too slow" else LIMITS)
    with monkeypatch.context() as patched:
        if why != "too slow":
            patched.setattr(sys, "executable", str(tmp_path / "gone") if why == "no program" else "/bin/false")
        for _ in range(2):
            with pytest.raises(TargetUnavailable, match="did not start") as unavailable:
                await isolate.run(functions.length, b"abc")
            assert unavailable.value.retryable
    if why != "too slow":
        assert (await answer(isolate, functions.length, b"abc"))["length"] == 3
    await isolate.close()


PARENT = """
import asyncio, json, sys
from butlers.isolation.isolate import Isolate
from tests.integration.isolation import functions

async def main():
    isolate = Isolate(functions.ALL)
    print(json.loads(await isolate.run(functions.length, b""))["pid"], flush=True)
    await (isolate.run(functions.hang, b"") if sys.argv[1] == "busy" else asyncio.Event().wait())

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
async def test_the_worker_ends_with_a_parent_that_was_killed(state: str) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, state, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    assert parent.stdout is not None
    worker = int(await parent.stdout.readline())
    assert is_running(worker)
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await until(lambda: not is_running(worker))
