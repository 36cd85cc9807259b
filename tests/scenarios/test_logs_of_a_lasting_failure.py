"""What the log of a running system says of a provider that is away for a while, and of a system with nothing to do."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from butlers.storage.embedded import EmbeddedPostgres
from butlers.telemetry import configure_logging
from tests.system import running_system


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    root = logging.getLogger()
    level, handler = root.level, configure_logging(path, logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
        root.setLevel(level)
        logging.captureWarnings(capture=False)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


async def test_a_provider_that_is_away_is_logged_at_the_beginning_and_at_the_end(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    path = tmp_path / "butlers.jsonl"
    with logging_to(path):
        async with running_system(tmp_path, postgres_server, telegram_poll_s=1) as running:
            await running.control("POST", "/faults", {"method": "getUpdates", "kind": "error_5xx", "times": 3})

            async def over() -> bool:
                return any(line["event"] == "polling works again" for line in _lines(path))

            await running.until(over)
    lines = _lines(path)
    (begin,) = [line for line in lines if line["event"] == "polling failed"]
    assert begin["error"]["message"].startswith("Telegram answered 5")
    (end,) = [line for line in lines if line["event"] == "polling works again"]
    assert end["attempts"] == 3
    assert not [line for line in lines if line["logger"].startswith(("httpx", "mcp"))], "polls are not news"
