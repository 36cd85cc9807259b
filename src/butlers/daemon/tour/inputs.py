"""What the tour sends: good events, and seven kinds of bad ones."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def event(update_id: str, chat: int, text: str, *, observed_at: datetime) -> dict[str, Any]:
    return {
        "schema_version": "ingest.v1",
        "source": {"channel": "telegram", "provider": "telegram", "endpoint_identity": "butlers_sim_bot"},
        "event": {
            "external_event_id": update_id,
            "external_thread_id": str(chat),
            "observed_at": observed_at.isoformat(),
        },
        "sender": {"identity": str(chat)},
        "payload": {"raw": {"update_id": update_id}, "normalized_text": text},
    }


def bad_inputs(good: dict[str, Any]) -> list[tuple[str, Any, str | None]]:
    """What is wrong, the body, and a token."""
    return [
        ("unknown field", good | {"surprise": 1}, None),
        ("wrong version", good | {"schema_version": "ingest.v9"}, None),
        ("empty text", good | {"payload": {"raw": {}, "normalized_text": "  "}}, None),
        ("naive timestamp", good | {"event": good["event"] | {"observed_at": "2026-01-01T00:00:00"}}, None),
        ("5 MB body", good | {"payload": {"raw": {}, "normalized_text": "x" * 5_000_000}}, None),
        ("invalid UTF-8", b'{"schema_version": "\xff\xfe"}', None),
        ("wrong token", good, "not-a-token"),
    ]
