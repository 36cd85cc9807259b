"""The butler that a message is for because of where it stands in a conversation (decision 0061).

| where | who |
|---|---|
| mail in a chain | the specialist that got the chain so far, when it was one; what an operator decided counts more |
| a Telegram reply to our own bot's "[name] ..." | that name |
| a few words in a chat that say nothing themselves | whoever got what was said just before, shortly before |

A name counts only when it may take the message now.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from butlers.channels.channel import Threads as ThreadKind
from butlers.channels.registry import channel_of
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries
from butlers.switchboard.registry import FALLBACK
from butlers.switchboard.routing.decision import Decision, whole
from butlers.switchboard.routing.ellipsis import says_nothing_itself
from butlers.switchboard.routing.question import RoutingQuestion

FOLLOW_UP_CONFIDENCE = 0.6  # a good guess, not an address
_ORIGIN = re.compile(r"\[([a-z][a-z0-9_]{0,62})\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
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
