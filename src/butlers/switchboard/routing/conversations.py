"""Conversations: what was said before a message, and the butler that follows from it (decision 0061)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.runtime import Speaker, Turn
from butlers.channels.channel import Threads
from butlers.channels.channel import Threads as ThreadKind
from butlers.channels.registry import channel_of
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries
from butlers.switchboard.registry import FALLBACK
from butlers.switchboard.routing.clauses import says_nothing_itself
from butlers.switchboard.routing.decision import Decision, RoutingQuestion, whole

CHAT_MESSAGES = 30
CHAT_WINDOW = timedelta(minutes=15)
MAX_TOKENS = 50_000
CHARACTERS_PER_TOKEN = 4
MOST_MESSAGES = 2_000  # of one conversation, however short they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message of a conversation."""

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


FOLLOW_UP_CONFIDENCE = 0.6  # a good guess, not an address
_ORIGIN = re.compile(r"\[([a-z][a-z0-9_]{0,62})\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationThreads:
    database: Database
    queries: Queries  # of butlers.switchboard.routing
    follow_up_s: float

    async def of(self, question: RoutingQuestion, names: frozenset[str]) -> Decision | None:
        """The butler that this message is addressed to by its place in a conversation."""
        if (name := replied_to(question)) in names and name is not None:
            return _to(question, name, 1.0, f"it answers what {name} said")
        if channel_of(question.channel).threads is not ThreadKind.CHAIN:
            return None
        name = await self._of_chain(question)
        return _to(question, name, 1.0, f"its thread is with {name}") if name in names and name is not None else None

    async def follow_up(self, question: RoutingQuestion, names: frozenset[str]) -> Decision | None:
        """The butler of what was said just before, for a message that says nothing itself."""
        if channel_of(question.channel).threads is not ThreadKind.CHAT or not says_nothing_itself(question.text):
            return None
        row = await self._last(self.queries.last_in_thread, question)
        if row is None or question.received_at is None:
            return None
        recent = question.received_at - row["received_at"] <= timedelta(seconds=self.follow_up_s)
        name = one_butler(row["routing_output"], row["override"])
        if not recent or name is None or name not in names - {FALLBACK}:
            return None
        return _to(question, name, FOLLOW_UP_CONFIDENCE, f"it says nothing itself and comes after something for {name}")

    async def _of_chain(self, question: RoutingQuestion) -> str | None:
        row = await self._last(self.queries.last_choice_in_thread, question)
        return one_butler(row["routing_output"], row["override"]) if row else None

    async def _last(self, query: str, question: RoutingQuestion) -> Record | None:
        if question.thread is None or question.request_id is None or question.received_at is None:
            return None
        return await self.database.fetchrow(query, question.received_at, question.request_id)


def replied_to(question: RoutingQuestion) -> str | None:
    """The name that Messenger put in front of the message of ours that is answered here."""
    inbound = channel_of(question.channel).inbound
    text = inbound.replied_to(question.raw_payload, question.endpoint) if inbound is not None else None
    found = _ORIGIN.match(text) if text is not None else None
    return found[1] if found else None


def one_butler(routing_output: Any, override: Any) -> str | None:
    """Who got it, when it was one; what an operator decided counts more."""
    decided = _mapping(override)
    if decided.get("action") == "manual_reroute" and isinstance(decided.get("target"), str):
        return str(decided["target"])
    segments = _mapping(routing_output).get("segments")
    names = {_mapping(segment).get("butler") for segment in segments} if isinstance(segments, list) else set()
    [name] = names if len(names) == 1 else [None]
    return name if isinstance(name, str) else None


def _to(question: RoutingQuestion, name: str, confidence: float, why: str) -> Decision:
    return whole(question.text, name, router="thread", confidence=confidence, why=why)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
