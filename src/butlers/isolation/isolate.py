"""The parent's side of a worker process: started when needed, warm between calls, killed when it exceeds a limit.

The worker is not trusted after it has seen foreign bytes: what comes back is JSON of bounded length, which the caller
validates; nothing is unpickled. It inherits no descriptors and no environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from butlers.errors import InternalError, TargetUnavailable
from butlers.isolation.worker import ANSWER, ANSWER_SIZE, CALL, DONE, MEMORY, READY
from butlers.telemetry import get_logger

log = get_logger("butlers.isolation")
_PIECE = 65_536  # bytes

Function = Callable[[bytes], Any]

_START = """
import json, sys
path, *arguments = json.loads(sys.argv[1])
sys.path[:] = path
from butlers.isolation.worker import serve
serve(*arguments)
"""


class FailureKind(StrEnum):
    DEADLINE = "deadline"
    MEMORY = "memory"
    CRASHED = "crashed"


class IsolationFailed(InternalError):
    """The worker did not finish a call; `kind` says why."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationLimits:
    deadline_s: float = 15.0  # of one call, by the clock: generous, because the machine may be busy
    cpu_s: int = 5  # seconds of CPU of one call
    memory_bytes: int = 512 * 1024 * 1024
    answer_bytes: int = 4 * 1024 * 1024
    start_s: float = 30.0  # until a new worker is ready
    calls: int = 1_000  # after which a worker is replaced by a new one


class Isolate:
    """Runs functions of bytes in one worker process, one call at a time."""

    def __init__(self, functions: Sequence[Function], *, limits: IsolationLimits = IsolationLimits()) -> None:
        self._names = {function: f"{function.__module__}:{function.__qualname__}" for function in functions}
        self._limits = limits
        self._process: asyncio.subprocess.Process | None = None
        self._calls = 0
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    async def run(self, function: Function, data: bytes) -> bytes:
        """The JSON of `function(data)`.

        Raises `IsolationFailed` when the call does not finish, `TargetUnavailable` when no worker could take it.
        """
        async with self._one_at_a_time:
            process = await self._ready()
            try:
                async with asyncio.timeout(self._limits.deadline_s):
                    ending, content = await self._call(process, self._names[function], data)
            except TimeoutError:
                await self._end()
                raise _failed(FailureKind.DEADLINE, f"it took longer than {self._limits.deadline_s:g} s") from None
            except (OSError, EOFError):
                if self._closed:  # it was killed by the stop, and not by what it worked on
                    raise _stopping() from None
                raise await self._why_it_died() from None
            except BaseException:  # also a caller that was cancelled: the answer would be read by the next one
                await self._end()
                raise
            return await self._content(ending, content)

    async def close(self) -> None:
        self._closed = True
        await self._end()

    async def _call(self, process: asyncio.subprocess.Process, name: str, data: bytes) -> tuple[bytes, bytes]:
        self._calls += 1
        if process.stdin is None:
            raise EOFError
        process.stdin.write(struct.pack(CALL, len(name), len(data)) + name.encode() + data)
        await process.stdin.drain()
        return await self._answer(process)

    async def _answer(self, process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
        if process.stdout is None:
            raise EOFError
        ending, length = struct.unpack(ANSWER, await process.stdout.readexactly(ANSWER_SIZE))
        if length > self._limits.answer_bytes:
            raise EOFError
        return ending, await process.stdout.readexactly(length)

    async def _content(self, ending: bytes, content: bytes) -> bytes:
        if ending == DONE:
            if self._calls >= self._limits.calls:
                await self._end()
            return content
        if ending == MEMORY:
            await self._end()
            megabytes = self._limits.memory_bytes // (1024 * 1024)
            raise _failed(FailureKind.MEMORY, f"it needed more than {megabytes} MiB of memory")
        raise _failed(FailureKind.CRASHED, f"it raised {content[:80].decode('ascii', 'replace')}")

    async def _ready(self) -> asyncio.subprocess.Process:
        if self._closed:
            raise _stopping()
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self._end()
        try:
            self._process = process = await self._start()
            async with asyncio.timeout(self._limits.start_s):
                ending, _ = await self._answer(process)
            if ending != READY:
                raise EOFError
        except BaseException as error:
            await self._end()
            if isinstance(error, TimeoutError | OSError | EOFError):
                log.warning("the worker process did not start", error=error)
                raise TargetUnavailable("the worker process did not start") from error
            raise
        return process

    async def _start(self) -> asyncio.subprocess.Process:
        limits, self._calls = self._limits, 0
        arguments = [_absolute(sys.path), list(self._names.values()), limits.memory_bytes, limits.cpu_s, os.getpid()]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-B",
            "-c",
            _START,
            json.dumps(arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"LC_ALL": "C.UTF-8"},
            cwd="/",
            start_new_session=True,  # ctrl-C at the terminal is the parent's
        )

    async def _why_it_died(self) -> IsolationFailed:
        code = await self._end()
        if code == -signal.SIGPROF:
            return _failed(FailureKind.DEADLINE, f"it took more than {self._limits.cpu_s} s of CPU")
        if code is not None and code < 0:
            return _failed(FailureKind.CRASHED, f"its process was ended by {signal.Signals(-code).name}")
        return _failed(FailureKind.CRASHED, f"its process ended (exit {code}) or gave no valid answer")

    async def _end(self) -> int | None:
        """Kills the worker if it still runs; returns how it ended by itself, None if it had to be killed."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:  # whoever closed its pipe is about to end: the reason is worth a moment
            async with asyncio.timeout(2 if process.stdout is not None and process.stdout.at_eof() else 0):
                return await process.wait()
        except TimeoutError:
            pass
        try:
            process.kill()
        except ProcessLookupError:
            return process.returncode
        # asyncio learns of a process's end when its pipe was read to its end; at a stop the call under way does that.
        while not self._closed and process.stdout is not None and await process.stdout.read(_PIECE):
            pass
        await process.wait()
        return None


def _absolute(path: Sequence[str]) -> list[str]:
    """The worker has another working folder."""
    return [str(Path(entry).absolute()) for entry in path]


def _failed(kind: FailureKind, message: str) -> IsolationFailed:
    log.warning("isolated work did not finish", reason=kind.value)
    return IsolationFailed(kind, message)


def _stopping() -> TargetUnavailable:
    return TargetUnavailable("the system is stopping")
