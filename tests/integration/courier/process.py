"""A gateway in a process of its own: `butlers courier serve`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.integration.courier.gateway import DEADLINE_S

BUTLERS = (sys.executable, "-m", "butlers.daemon.cli")
_UP = re.compile(r"http://127\.0\.0\.1:(\d+)")


@asynccontextmanager
async def served(*options: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """`butlers courier serve` on a free port; its address and its process."""
    process = await asyncio.create_subprocess_exec(
        *BUTLERS, "courier", "serve", "--port", "0", *options, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            found = _UP.search((await process.stdout.readline()).decode())
        assert found is not None
        yield found[0], process
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGTERM)
            async with asyncio.timeout(DEADLINE_S):
                await process.wait()
