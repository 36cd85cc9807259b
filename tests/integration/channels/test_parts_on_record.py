"""A part that Telegram confirmed stays confirmed, however long our own database is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from butlers.messenger.attempt import GRACE_S
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import attempts, certainty, deliver, quick, rows, time_limit, wish
from tests.system import RunningSystem, running_system

TIMEOUT_S = 0.5
IMPATIENT = time_limit(telegram=TIMEOUT_S)
RESENDS = certainty(telegram="never_lose")
WORDS = ("one", "two", "three")
LONG = "\n\n".join(f"{word} " * 680 for word in WORDS)


@asynccontextmanager
async def no_receipts(running: RunningSystem) -> AsyncIterator[None]:
    """The database takes everything but receipts."""
    await running.database.execute(
        "create function messenger.refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'no room'; end $$"
    )
    await running.database.execute(
        "create trigger refuse before insert on messenger.delivery_receipts execute function messenger.refuse()"
    )
    yield
    await running.database.execute("drop trigger refuse on messenger.delivery_receipts")


async def said(running: RunningSystem) -> list[str]:
    """The first word of every part that Telegram has, without the origin's mark."""
    return [text.removeprefix("[health] ").split()[0] for text in await running.answers(61)]


@pytest.mark.parametrize("policy", [(), (RESENDS,)], ids=["never_duplicate", "never_lose"])
async def test_a_confirmed_part_is_neither_in_doubt_nor_said_twice(
    tmp_path: Path, postgres_server: EmbeddedPostgres, policy: tuple[tuple[str, str], ...]
) -> None:
    roster = quick(tmp_path, IMPATIENT, *policy)
    async with running_system(tmp_path, postgres_server, names=["messenger"], roster_dir=roster) as running:
        async with no_receipts(running):
            under_way = asyncio.create_task(deliver(running, wish(LONG, recipient="61")))
            await running.until(lambda: said(running))
            over = asyncio.get_running_loop().time() + TIMEOUT_S + GRACE_S + 0.3

            async def too_late() -> bool:
                return asyncio.get_running_loop().time() > over

            await running.until(too_late)
            assert [attempt["completed_at"] for attempt in await attempts(running)] == [None]
        assert (await under_way)["delivery"]["status"] == "delivered"
        first, second = await attempts(running)
        assert (first["certainty"], first["error_class"]) == ("not_sent", "timeout")
        assert (second["certainty"], second["outcome"]) == ("sent", "sent")
        assert await said(running) == list(WORDS)
        (row,) = await rows(running)
        assert (row["status"], row["attempts"]) == ("delivered", 2)
