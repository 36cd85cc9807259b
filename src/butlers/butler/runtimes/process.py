"""Runs one program to its end, within bounds.

    spawn in a new session ──> write stdin ──> wait for: exit | too much output | timeout | cancellation
                                                       └──> kill the whole group ──> drain ──> reap

A protocol is used instead of the stream classes, because waiting on those means waiting for end of file, and a
grandchild that keeps the pipe open would hold up an answer that is complete. Here the exit of the program itself
counts; then the group is killed, so nothing that it started outlives the call. (A process that starts a session of its
own leaves the group and is out of reach.)
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

DRAIN_S = 1.0  # for what is still in the pipes when the group is dead
KEPT_STDERR = 16 * 1024

_STDIN, _STDOUT, _STDERR = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a program left behind."""

    exit_code: int
    stdout: bytes
    stderr: bytes  # the last part only
    overflowed: bool  # stdout exceeded the bound, and the program was killed for it


async def run_to_end(
    argv: Sequence[str],
    *,
    stdin: bytes,
    environment: Mapping[str, str],
    directory: Path,
    timeout_s: float,
    stdout_limit: int,
) -> Finished:
    """Raises `TimeoutError` when the time is over and `OSError` when the program cannot be started."""
    loop = asyncio.get_running_loop()
    transport, conversation = await loop.subprocess_exec(
        lambda: _Conversation(stdout_limit),
        *argv,
        env=dict(environment),
        cwd=directory,
        start_new_session=True,
    )
    try:
        _write(transport, stdin)
        async with asyncio.timeout(timeout_s):
            await conversation.settled.wait()
    finally:
        _kill_group(transport.get_pid())
        await _reap(transport, conversation)
    return Finished(
        exit_code=transport.get_returncode() or 0,
        stdout=bytes(conversation.stdout),
        stderr=bytes(conversation.stderr),
        overflowed=conversation.overflowed,
    )


class _Conversation(asyncio.SubprocessProtocol):
    """Collects output up to its bound and notices the ends."""

    def __init__(self, stdout_limit: int) -> None:
        self._stdout_limit = stdout_limit
        self._open_pipes = {_STDOUT, _STDERR}
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.overflowed = False
        self.settled = asyncio.Event()  # it exited, or said too much to be let go on
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDERR:
            self.stderr += data
            del self.stderr[:-KEPT_STDERR]
        elif len(self.stdout) + len(data) > self._stdout_limit:
            self.overflowed = True
            self.settled.set()
        else:
            self.stdout += data

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_pipes.discard(fd)
        if not self._open_pipes:
            self.drained.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.settled.set()


def _write(transport: asyncio.SubprocessTransport, data: bytes) -> None:
    pipe = cast("asyncio.WriteTransport", transport.get_pipe_transport(_STDIN))
    pipe.write(data)
    pipe.close()  # after what is buffered


def _kill_group(pid: int) -> None:
    # The program leads a session of its own, so its pid is the group's id.
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


async def _reap(transport: asyncio.SubprocessTransport, conversation: _Conversation) -> None:
    try:
        await asyncio.shield(_ended(conversation))
    finally:
        transport.close()


async def _ended(conversation: _Conversation) -> None:
    await conversation.exited.wait()
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            await conversation.drained.wait()
