"""What was said before in a conversation: for the router to understand a message, and for the butler that answers it.

| channel | how far back |
|---|---|
| chats | the last 30 messages, or those of the last 15 minutes when they are more, each with what was answered |
| email | the chain, as far as the same sender wrote it, each mail with what was answered |

Both are cut to 50,000 tokens, the oldest first. A token is counted as four characters: no tokenizer is asked, because
each model has its own and an estimate is enough for a bound. The message itself counts, too; it is not part of what
comes back, and it alone is routed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.runtime import Speaker, Turn
from butlers.channels.channel import Threads
from butlers.channels.registry import channel_of
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries
from butlers.switchboard.routing.question import RoutingQuestion

CHAT_MESSAGES = 30
CHAT_WINDOW = timedelta(minutes=15)
MAX_TOKENS = 50_000
CHARACTERS_PER_TOKEN = 4
MOST_MESSAGES = 2_000  # of one conversation, however short they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One thing somebody said."""

    speaker: Speaker
    text: str
    at: datetime
    butler: str | None = None  # who answered

    def turn(self) -> Turn:
        return Turn(speaker=self.speaker, text=self.text)

    def to_wire(self) -> dict[str, Any]:
        """As `route.v1` carries it in `input.conversation_history`."""
        wire = {"role": self.speaker.value, "text": self.text, "at": self.at.isoformat()}
        return wire | ({"butler": self.butler} if self.butler else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    database: Database
    queries: Queries  # of butlers.switchboard.routing

    async def before(self, question: RoutingQuestion) -> tuple[Said, ...]:
        """What was said before this message in its conversation, oldest first."""
        if question.thread is None or question.request_id is None or question.received_at is None:
            return ()
        rows = await self._messages(question.channel, question.received_at, question.request_id)
        answers = await self.database.fetch(self.queries.answers_to, [row["request_id"] for row in rows])
        return newest(_said(rows, answers), tokens=MAX_TOKENS - tokens_of(question.text))

    async def _messages(self, channel: str, received_at: datetime, request_id: UUID) -> list[Record]:
        place = (received_at, request_id)
        if channel_of(channel).threads is Threads.CHAIN:
            characters = MAX_TOKENS * CHARACTERS_PER_TOKEN
            return await self.database.fetch(self.queries.chain_before, *place, characters, MOST_MESSAGES)
        since = received_at - CHAT_WINDOW
        return await self.database.fetch(self.queries.chat_before, *place, CHAT_MESSAGES, since, MOST_MESSAGES)


def tokens_of(text: str) -> int:
    """An estimate that never says none for something."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def newest(said: Sequence[Said], *, tokens: int) -> tuple[Said, ...]:
    """The newest of what was said, oldest first; of the one that fits only in part, its beginning."""
    kept: list[Said] = []
    for one in reversed(said):
        size = tokens_of(one.text)
        if size > tokens:
            if tokens > 0:
                kept.append(replace(one, text=one.text[: tokens * CHARACTERS_PER_TOKEN]))
            break
        kept.append(one)
        tokens -= size
    return tuple(reversed(kept))


def _said(rows: Iterable[Record], answers: Iterable[Record]) -> list[Said]:
    answered: dict[UUID, list[Record]] = {}
    for answer in answers:
        answered.setdefault(answer["request_id"], []).append(answer)
    lines = [line for row in rows for line in _lines(row, answered.get(row["request_id"], []))]
    return sorted(lines, key=lambda line: line.at)


def _lines(row: Record, answers: Sequence[Record]) -> Iterator[Said]:
    yield Said(speaker=Speaker.USER, text=row["normalized_text"], at=row["received_at"])
    if answers:
        for answer in answers:
            yield Said(
                speaker=Speaker.BUTLER, text=answer["message"], at=answer["created_at"], butler=answer["source_butler"]
            )
        return
    for butler, text in ((row["aggregated_reply"] or {}).get("answers") or {}).items():
        if isinstance(text, str) and text:
            yield Said(speaker=Speaker.BUTLER, text=text, at=row["received_at"], butler=butler)
