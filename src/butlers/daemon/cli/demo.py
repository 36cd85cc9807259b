"""`butlers demo`: the tour."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from butlers.clock import SystemClock
from butlers.daemon.cli.exits import FAILED, OK
from butlers.daemon.cli.options import Json

if TYPE_CHECKING:
    from butlers.daemon.demo.lines import Line

Keep = Annotated[bool, typer.Option("--keep", help="Leave the system running at the end.")]


def demo(as_json: Json = False, keep: Keep = False) -> int:
    """Start everything in a temporary directory, drive real traffic, show what was seen."""
    return asyncio.run(_demo(as_json=as_json, keep=keep))


async def _demo(*, as_json: bool, keep: bool) -> int:
    from butlers.daemon.demo.lines import Demo

    current = asyncio.current_task()
    if current is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, current.cancel)
    folder = Path(tempfile.mkdtemp(prefix="butlers-demo-"))
    shown = Demo(folder, SystemClock(), _progress)
    seen: list[Line] = []
    try:
        async for line in shown.lines(keep=keep):
            seen.append(line)
            print(_readable(line), file=sys.stderr if as_json else sys.stdout, flush=True)
    finally:
        if not keep:
            await shown.instance.close()
            if all(line.passed for line in seen):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                print(f"butlers: logs and data of the failed demo stay in {folder}", file=sys.stderr)
    passed = sum(line.passed for line in seen)
    if as_json:
        print(json.dumps({"passed": passed, "total": len(seen), "lines": [line.to_json() for line in seen]}))
    else:
        print(f"{passed} of {len(seen)} lines passed")
    if keep:
        print(f"still running: butlers status --data-dir {folder}", file=sys.stderr)
    return OK if passed == len(seen) else FAILED


def _progress(name: str) -> None:
    print(f"butlers: {name} ...", file=sys.stderr, flush=True)


def _readable(line: Line) -> str:
    mark = "pass" if line.passed else "FAIL"
    return f"{mark}  {line.name:<14} {line.shows}\n      {line.detail}  ({line.seconds:.1f} s)"
