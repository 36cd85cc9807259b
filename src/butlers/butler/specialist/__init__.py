"""What a domain butler does: keep what it is told, and answer.

    keep (once per segment) -> answer (once, stored) -> notify (keyed)

Each step is idempotent, so the whole may run again after a crash without saying anything twice. With an LLM CLI
configured the answer is the model's; otherwise the local runtime acknowledges notes and answers questions from them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, StringConstraints

from butlers.butler.identity import Caller
from butlers.butler.sessions import Spawner
from butlers.butler.toolbox import Tool
from butlers.butler.transport import Notifier
from butlers.clock import Clock
from butlers.contracts.envelope import Identity, RequestContext, RequestId, Value
from butlers.contracts.route import RouteEnvelope
from butlers.errors import from_wire
from butlers.operations.operation import ADDS_ONCE, Result
from butlers.storage.database import Database
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries

GREETINGS = frozenset({"/start", "/help", "help"})
HELP = (
    "Tell me what I should remember, for example: I paid the electricity bill, 84 euros. "
    "Ask me about it later: When did I pay the electricity bill?"
)
LONGEST_QUOTE = 120  # characters of a kept note that an answer repeats
RECALLED = 5  # notes that an answer repeats at most

_WORD = re.compile(r"[^\W_]+")
_QUESTION_WORDS = frozenset(
    {"what", "when", "where", "who", "whom", "whose", "which", "why", "how", "did", "do", "does"}
    | {"is", "are", "was", "were", "can", "could"}
)
_EMPTY_WORDS = _QUESTION_WORDS | frozenset(
    {"a", "an", "the", "i", "you", "my", "me", "your", "to", "of", "for", "in", "on", "at", "about"}
    | {"tell", "have", "has", "it"}
)


def migrations(schema: str) -> MigrationSet:
    return MigrationSet(schema=schema, package="butlers.butler.specialist", component="specialist")


@dataclass(frozen=True, slots=True, kw_only=True)
class Specialist:
    name: str
    database: Database
    queries: Queries
    spawner: Spawner
    notifier: Notifier
    clock: Clock
    new_id: Callable[[], UUID]

    async def handle(self, envelope: RouteEnvelope) -> dict[str, Any]:
        context, segment_id, text = envelope.request_context, envelope.subrequest.segment_id, envelope.input.prompt
        answer: str | None = await self.database.fetchval(
            self.queries.keep,
            self.new_id(),
            context.request_id,
            segment_id,
            "question" if is_question(text) else "note",
            text,
            context.source_sender_identity,
            context.source_channel,
            context.source_endpoint_identity,
            self.clock.now(),
        )
        tokens: int | None = None
        if answer is None:
            composed, tokens = await self._compose(context, text)
            answer = str(
                await self.database.fetchval(self.queries.record_answer, context.request_id, segment_id, composed)
            )
        response = await self.notifier.answer(context, answer, key=f"{context.request_id}:{segment_id}:answer")
        delivery = response.delivery
        # Uncertain is an end, too: Messenger keeps it for a person to settle, and saying it again could repeat it.
        if response.error is not None and not (delivery is not None and delivery.status == "uncertain"):
            error = response.error
            # Once Messenger has it, its own retries are over, too; trying again would only get the same answer.
            retryable = error.retryable and delivery is None
            raise from_wire(
                error.error_class, error.message, retryable=retryable, retry_after=error.retry_after_seconds
            )
        usage = {} if tokens is None else {"usage": {"tokens": tokens}}
        return {"answer": answer, "delivery": delivery.to_wire() if delivery else None} | usage

    async def _compose(self, context: RequestContext, text: str) -> tuple[str, int | None]:
        """The answer, and the tokens that it took if the runtime reports them."""
        if self.spawner.runtime_name != "local":
            result = await self.spawner.answer(
                text,
                trigger_source="route",
                request_id=context.request_id,
                speaker=context.speaker,
            )
            return result.text.strip() or "Done.", result.tokens
        notes = await self._recall(context, text) if is_question(text) else []
        return local_answer(self.name, text, notes), None

    async def _recall(self, context: RequestContext, question: str) -> list[tuple[str, date]]:
        """What this sender said before; nobody else's notes are ever read, whatever the question names."""
        if not (words := search_words(question)):
            return []
        who = (context.source_channel, context.source_endpoint_identity, context.source_sender_identity)
        rows = await self.database.fetch(self.queries.recall, *who, " | ".join(words), RECALLED)
        return [(row["text"], row["created_at"].date()) for row in rows]

    async def trace(self, request_id: UUID) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.database.fetch(self.queries.entries_of_request, request_id)]


def is_question(text: str) -> bool:
    words = _WORD.findall(text.casefold())
    return text.rstrip().endswith("?") or bool(words and words[0] in _QUESTION_WORDS)


def search_words(text: str) -> list[str]:
    """The words of a question that can find a note."""
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return list(dict.fromkeys(word for word in words if word not in _EMPTY_WORDS))[:20]


def local_answer(butler: str, text: str, notes: Sequence[tuple[str, date]]) -> str:
    """`notes` are what was told before, each with its day."""
    if text.strip().casefold() in GREETINGS:
        return HELP
    if not is_question(text):
        return f"Noted: {_quote(text)}"
    if not notes:
        return f"I have nothing on that yet. Tell me, and {butler} will remember it."
    lines = "\n".join(f"- {_quote(note)} (on {day.isoformat()})" for note, day in notes)
    return f"This is what you told me:\n{lines}"


def _quote(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST_QUOTE else f"{flat[: LONGEST_QUOTE - 1]}…"


RELATIONSHIP = "relationship"
_SHORT = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,32}$")]


class SignalArguments(Value):
    request_id: RequestId = Field(description="the id that the request got at the door: a UUID of version 7")
    key: Annotated[str, StringConstraints(pattern=r"^extraction-[0-9]{1,4}$")] = Field(
        description="the place of the signal in its request, such as extraction-0"
    )
    signal_type: _SHORT = Field(description="the kind of signal")
    contact_hint: str | None = Field(default=None, description="the person it is about, as named in the message")
    data: dict[str, Any] = Field(description="what was learned")
    sender: Identity = Field(description="who wrote the message")
    source_channel: Identity = Field(description="the channel that the request came in by")
    source_endpoint: Identity | None = Field(
        default=None, description="the bot, mailbox or client that the request came in by; absent: it was not recorded"
    )


class SignalRecorded(Result):
    status: str = Field(description="recorded")
    key: str = Field(description="the place of the signal in its request")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRecorder:
    """`relationship.record`: what Switchboard took out of a message, kept as a note beside what people said themselves.

    The key is the request and the place of the signal in it, so a repeat records nothing new.
    """

    database: Database
    queries: Queries  # of butlers.butler.specialist
    clock: Clock
    new_id: Callable[[], UUID]

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name="relationship.record",
                description="Keep what a message told about a person.",
                arguments=SignalArguments,
                returns=SignalRecorded,
                hints=ADDS_ONCE,
                handler=self._record,
                owner="switchboard",
            )
        ]

    async def _record(self, _caller: Caller, signal: SignalArguments) -> dict[str, Any]:
        await self.database.execute(
            self.queries.keep,
            self.new_id(),
            signal.request_id,
            signal.key,
            "note",
            as_note(signal.signal_type, signal.contact_hint, signal.data),
            signal.sender,
            signal.source_channel,
            signal.source_endpoint,
            self.clock.now(),
        )
        return {"status": "recorded", "key": signal.key}


def as_note(signal_type: str, contact_hint: str | None, data: Mapping[str, Any]) -> str:
    """A signal as a line that people read and a question finds."""
    details = ", ".join(f"{name} {value}" for name, value in data.items() if value not in (None, ""))
    return f"{contact_hint or 'Somebody'}: {signal_type.replace('_', ' ')} ({details})"
