"""A job in a process of its own, for services: Spark's Java, memory and threads stay out of theirs.

    service --> run_in_process --> python -m butlers.pipeline.process REQUEST --> one JSON line on standard output

The request is a JSON document, the database's address comes in the environment (`DATABASE_URL`), because everybody on
the machine can read a command line. The exit code says what the line says:

    0  succeeded               1  ran, and found something wrong or failed      2  the request is wrong
    3  configuration is wrong  130  was told to end

Nothing here imports Spark before the child is the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from butlers.errors import ClassifiedError, ConfigurationError, InternalError, TimeoutExceeded, from_wire
from butlers.pipeline.job import Window
from butlers.pipeline.session import stop_signals

ADDRESS = "DATABASE_URL"
OK, NEEDS_ATTENTION, USAGE, CONFIGURATION, INTERRUPTED = 0, 1, 2, 3, 130
_GRACE_S = 30.0  # to write down the end, before the group is killed: longer than Java takes to start
_LAST_WORDS = 300  # letters


async def run_in_process(
    job: str,
    window: Window,
    *,
    dsn: str,
    lake: Path,
    scratch: Path,
    arguments: Mapping[str, str] | None = None,
    master: str | None = None,
    memory: str = "1g",
    limit_s: float = 3600.0,
) -> dict[str, Any]:
    """The run's description when it succeeded or needs attention; everything else is raised."""
    request = {
        "job": job,
        "from": window.start.isoformat(),
        "to": window.end.isoformat(),
        "arguments": dict(arguments or {}),
        "lake": str(lake),
        "scratch": str(scratch),
        "master": master,
        "memory": memory,
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "butlers.pipeline.process",
        json.dumps(request),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {ADDRESS: dsn},
        start_new_session=True,  # a group of its own, Java included, which can be ended as a whole
    )
    try:
        async with asyncio.timeout(limit_s):
            stdout, stderr = await child.communicate()
    except TimeoutError:
        raise TimeoutExceeded(f"the job {job} was not done after {limit_s:g} seconds and was ended") from None
    finally:
        await _end(child)
    return understood(job, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


async def _end(child: asyncio.subprocess.Process) -> None:
    """Ask it to end, so that it writes down how; then end whatever is left of its group."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(child.wait()), _GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()


def understood(job: str, stdout: str, stderr: str) -> dict[str, Any]:
    """What a child's output means to its parent."""
    lines = stdout.strip().splitlines()
    try:
        document: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise InternalError(f"the job {job} died: {_last_lines(stderr)}") from None
    error = document.get("error")
    if not error:
        return document
    if error["class"] == "configuration_error":
        named = {name: str(error.get(name, "")) for name in ("source", "key", "remedy")}
        raise ConfigurationError(str(error.get("problem", error["message"])), **named)
    raise from_wire(error["class"], f"the job {job}: {error['message']}", retryable=error.get("retryable"))


def _last_lines(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][-_LAST_WORDS:] if lines else "it said nothing"


def main(words: list[str], environment: Mapping[str, str]) -> int:
    """The child's side."""
    try:
        with ends_on_signal():
            document, code = _run(json.loads(words[0]), environment)
    except ConfigurationError as error:
        names = ("problem", "source", "key", "remedy")
        described = {"class": "configuration_error", "message": str(error)}
        document, code = {"error": described | {name: getattr(error, name) for name in names}}, CONFIGURATION
    except ClassifiedError as error:
        document = {"error": error.describe()}
        code = USAGE if error.error_class == "validation_error" else NEEDS_ATTENTION
    except KeyboardInterrupt:
        document, code = {"error": InternalError("the run was told to end").describe()}, INTERRUPTED
    sys.stdout.write(json.dumps(document) + "\n")
    return code


def _run(request: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[dict[str, Any], int]:
    # Reason for the late imports: the service's side of this file must not load Spark.
    from butlers.clock import SystemClock  # noqa: PLC0415
    from butlers.ids import Uuid7Factory  # noqa: PLC0415
    from butlers.pipeline.runner import RunRequest, run_job  # noqa: PLC0415
    from butlers.pipeline.session import SessionSettings  # noqa: PLC0415

    clock = SystemClock()
    asked = RunRequest(
        job=request["job"],
        window=Window.parse(request["from"], request["to"]),
        dsn=environment.get(ADDRESS, ""),
        lake=Path(request["lake"]),
        session=SessionSettings(scratch=Path(request["scratch"]), master=request["master"], memory=request["memory"]),
        arguments=request["arguments"],
    )
    document = run_job(asked, clock=clock, new_id=Uuid7Factory(clock))
    return document, OK if document["outcome"] == "succeeded" else NEEDS_ATTENTION


@contextlib.contextmanager
def ends_on_signal() -> Iterator[None]:
    """A TERM, or the HUP of a terminal that closes, ends the run as ctrl-C does, so that its row says so."""
    before = {number: signal.signal(number, _stop_requested) for number in stop_signals() if number != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_requested(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
