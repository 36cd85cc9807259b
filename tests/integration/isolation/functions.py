"""What the worker process is asked to do in these tests."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any


def length(data: bytes) -> Any:
    return {"length": len(data), "pid": os.getpid()}


def surroundings(_data: bytes) -> Any:
    descriptors = sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    return {"environment": sorted(os.environ), "descriptors": descriptors, "folder": str(Path.cwd())}


def hang(_data: bytes) -> Any:
    time.sleep(3600)


def work(_data: bytes) -> Any:
    """Takes 0.3 s of CPU; answers how many were left of the call's, by the kernel's count, when it began."""
    left, begun = signal.getitimer(signal.ITIMER_PROF)[0], time.process_time()
    while time.process_time() < begun + 0.3:
        pass
    return left


def spin(_data: bytes) -> Any:
    while True:
        pass


def eat(_data: bytes) -> Any:
    return len(bytearray(3 * resource.getrlimit(resource.RLIMIT_DATA)[0]))


def die(_data: bytes) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(_data: bytes) -> Any:
    os._exit(7)


def fail(_data: bytes) -> Any:
    raise LookupError("the words of a stranger")


def chatter(_data: bytes) -> Any:
    print("not for the parent", flush=True)
    return "said"


def talk_too_much(_data: bytes) -> Any:
    return "x" * (2 * 1024 * 1024)


ALL = (length, surroundings, hang, work, spin, eat, die, leave, fail, chatter, talk_too_much)
