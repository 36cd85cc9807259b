"""What a domain butler does: keep what it is told, and answer.

    keep (once per segment) -> answer (once, stored) -> notify (keyed)

Each step is idempotent, so the whole may run again after a crash without saying anything twice. With an LLM CLI
configured the answer is the model's; otherwise the local runtime acknowledges notes and answers questions from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import UUID

from butlers.butler.notifier import Notifier
from butlers.butler.sessions import Spawner
from butlers.butler.specialist.local import is_question, local_answer, search_words
from butlers.clock import Clock
from butlers.contracts.context import RequestContext
from butlers.contracts.route import RouteEnvelope
from butlers.errors import from_wire
from butlers.storage.database import Database
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries

RECALLED = 5


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
        context, segment_id = envelope.request_context, envelope.subrequest.segment_id
        await self._keep(envelope)
        answer, tokens = await self._answer(envelope)
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

    async def _keep(self, envelope: RouteEnvelope) -> None:
        context, text = envelope.request_context, envelope.input.prompt
        await self.database.execute(
            self.queries.keep,
            self.new_id(),
            context.request_id,
            envelope.subrequest.segment_id,
            "question" if is_question(text) else "note",
            text,
            context.source_sender_identity,
            context.source_channel,
            context.source_endpoint_identity,
            self.clock.now(),
        )

    async def _answer(self, envelope: RouteEnvelope) -> tuple[str, int | None]:
        """What is answered, and the tokens that it took now, if anybody said so."""
        key = (envelope.request_context.request_id, envelope.subrequest.segment_id)
        entry = await self.database.fetchrow(self.queries.entry, *key)
        if entry is not None and entry["answer"] is not None:
            return entry["answer"], None
        answer, tokens = await self._compose(envelope)
        return await self.database.fetchval(self.queries.record_answer, *key, answer), tokens

    async def _compose(self, envelope: RouteEnvelope) -> tuple[str, int | None]:
        context, text = envelope.request_context, envelope.input.prompt
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
