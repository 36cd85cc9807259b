"""A process with both simulators, the mail control API on the Telegram simulator's port, until SIGTERM.

python both_simulators.py DIRECTORY asyncio|uvloop
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import uvloop

from butlers.channels.email.simulator import serve_mail
from butlers.channels.telegram.simulator import serve_telegram
from butlers.clock import SystemClock

ACCOUNTS = {"butler@home.example": "p", "owner@home.example": "p"}


async def serve(directory: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    clock = SystemClock()
    async with (
        serve_mail(
            "127.0.0.1", 0, 0, None, clock=clock, accounts=ACCOUNTS, journal_path=directory / "mail.jsonl"
        ) as mail,
        serve_telegram(
            port=0, clock=clock, journal_path=directory / "telegram.jsonl", extra_routes=mail.control_routes()
        ) as telegram,
    ):
        ports = {"http": telegram.port, "smtp": mail.smtp_port, "imap": mail.imap_port}
        sys.stdout.write(json.dumps(ports) + "\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    run = {"asyncio": asyncio.run, "uvloop": uvloop.run}[sys.argv[2]]
    run(serve(Path(sys.argv[1])))
