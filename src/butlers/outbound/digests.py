"""Digests: messages of one event type to one person, collected for a while and sent as one.

The windows of a length lie on a fixed grid from 1970 in UTC, so every process names the same digest: its id follows
from the person, the sender, the event type and the end of the window. A digest is a message like others, due at that
end.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from butlers.outbound.documents import MessageDocument
from butlers.outbound.records import Work, digest_id

LONGEST_DIGEST = 20_000  # characters
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def window_end(now: datetime, seconds: int, *, windows: int = 1) -> datetime:
    """The end of the window that `now` lies in, or of a later one."""
    length = timedelta(seconds=seconds)
    return _EPOCH + ((now - _EPOCH) // length + windows) * length


def digest_document(work: Work, seconds: int, now: datetime, *, windows: int = 1) -> tuple[MessageDocument, datetime]:
    """The digest that may carry the work, and when it is due."""
    due = window_end(now, seconds, windows=windows)
    document = work.document
    scope = f"{document.sender_id} {document.organization_id or ''} {document.event}"
    policy = document.delivery_policy.model_copy(update={"digest_seconds": None, "repeat": None})
    digest = MessageDocument(
        id=digest_id(work.recipient_id, scope, due),
        sender_id=document.sender_id,
        organization_id=document.organization_id,
        event_type=document.event,
        body=f"digest of {document.event}",
        priority=document.priority,
        delivery_policy=policy,
    )
    return digest, due


def digest_text(event: str, texts: Sequence[str]) -> str:
    """One text of several. Each is shortened as far as it takes to keep the whole within `LONGEST_DIGEST`."""
    share = max(LONGEST_DIGEST // len(texts), 80)
    parts = [f"{number}. {_shortened(text, share)}" for number, text in enumerate(texts, start=1)]
    return "\n\n".join([f"{len(texts)} messages ({event}):", *parts])


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 4]} [..]"
