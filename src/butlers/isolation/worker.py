"""The worker process: imports the named functions, gives itself limits, then answers calls until its pipe closes.

    call      4 bytes: length of the function's name, 4 bytes: length of the data, the name, the data
    answer    1 byte: how it ended, 4 bytes: length, then JSON (done) or the reason (anything else)

The parent may die without a word: then the pipe ends, and on Linux the kernel kills the worker at once. Nothing here
imports the rest of the system, so that a worker starts in a fraction of a second.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, BinaryIO

CALL, CALL_SIZE = ">II", 8  # as `struct` knows them
ANSWER, ANSWER_SIZE = ">cI", 5
READY, DONE, RAISED, MEMORY = b"r", b"d", b"x", b"m"
_PR_SET_PDEATHSIG = 1
_OPEN_FILES = 16

Function = Callable[[bytes], Any]


def serve(names: Sequence[str], memory_bytes: int, cpu_s: int, parent: int) -> None:
    """Answers calls of the functions `module:name` on standard input and output; returns when the parent is gone."""
    calls, answers = _channels()
    _die_with(parent)
    functions = {name: _load(name) for name in names}
    _limit(memory_bytes)
    _write(answers, READY, b"")
    while (head := calls.read(CALL_SIZE)) and len(head) == CALL_SIZE:
        name_length, data_length = struct.unpack(CALL, head)
        name, data = calls.read(name_length).decode(), calls.read(data_length)
        if len(data) < data_length:
            return
        _allow_cpu(cpu_s)
        ending, content = _answer(functions[name], data)
        _write(answers, ending, content)
        if ending == MEMORY:
            return  # whatever ran out of memory may have left anything behind


def _answer(function: Function, data: bytes) -> tuple[bytes, bytes]:
    try:
        return DONE, json.dumps(function(data)).encode("ascii")
    except MemoryError:
        return MEMORY, b""
    except Exception as error:
        return RAISED, type(error).__name__.encode("ascii", "replace")


def _write(answers: BinaryIO, ending: bytes, content: bytes) -> None:
    answers.write(struct.pack(ANSWER, ending, len(content)) + content)
    answers.flush()


def _load(name: str) -> Function:
    module, _, attribute = name.partition(":")
    function: Function = getattr(import_module(module), attribute)
    return function


def _channels() -> tuple[BinaryIO, BinaryIO]:
    """The two pipes, under numbers of their own: what a library prints must not reach the parent."""
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    return calls, answers


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)  # it died before the kernel was told


def _limit(memory_bytes: int) -> None:
    """RLIMIT_DATA counts private memory; the address space holds the interpreter's shared pages, too."""
    for kind, most in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_AS, 4 * memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, limit))


def _allow_cpu(seconds: int) -> None:
    """So many seconds of CPU from now on; the kernel ends a process that takes more (SIGPROF).

    Not RLIMIT_CPU: its total counts ticks and runs ahead of the one that `getrusage` tells, by some percent on a busy
    machine, so a limit that is derived from that one ends a worker that has merely worked for long.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
