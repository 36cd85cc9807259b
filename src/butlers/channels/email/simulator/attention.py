"""Knowing when nobody is owed an answer any more, so that a server may hang up.

A connection is served by one task that reads a command, does it, writes the answer and reads again. When it waits for
bytes from its client, everything that the client sent whole has been answered. That the answer has reached the kernel
by then is what a write buffer limit of zero is for: `drain` returns when nothing is left to write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from butlers.serving.server import take_in

_GRACE_SECONDS = 5.0  # for a client that does not take its answer
_POLL_SECONDS = 0.01


def waits_for_its_client(reader: asyncio.StreamReader) -> bool:
    """Whether a task waits for bytes that have not come; asyncio has no public word for it."""
    return getattr(reader, "_waiter", None) is not None


async def until_answered(nothing_owed: Callable[[], bool]) -> None:
    """Return when everything received so far is answered, or when our patience ends."""
    await take_in()
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_SECONDS):
            while not nothing_owed():  # noqa: ASYNC110 - nobody tells us when a task begins to wait
                await asyncio.sleep(_POLL_SECONDS)
