"""`python -m butlers.channels.telegram.simulator`: the simulator as a process of its own.

Says where it listens in one JSON line on standard output, then serves until it is interrupted; what it has received
by then is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from butlers.channels.telegram.simulator.server import DEFAULT_PORT, DEFAULT_TOKEN, serve_telegram
from butlers.clock import SystemClock
from butlers.errors import ConfigurationError


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m butlers.channels.telegram.simulator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 takes a free one")
    parser.add_argument("--journal", type=Path, default=None, help="file that remembers across restarts")
    parser.add_argument("--token", default=DEFAULT_TOKEN)
    return parser.parse_args()


async def _run(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve_telegram(
        arguments.host,
        arguments.port,
        clock=SystemClock(),
        journal_path=arguments.journal,
        token=arguments.token,
    ) as simulator:
        sys.stdout.write(json.dumps({"base_url": simulator.base_url, "port": simulator.port}) + "\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    try:
        asyncio.run(_run(_arguments()))
    except ConfigurationError as problem:
        sys.exit(str(problem))
