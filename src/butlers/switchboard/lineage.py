"""What Switchboard itself knows of a request: where an answer to it goes, whatever the payload of the answer says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from butlers.contracts.context import RequestContext
from butlers.contracts.envelope import invalid
from butlers.contracts.notify import NotifyContext, NotifyEnvelope
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.source_event import source_event


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """A request on record."""

    context: RequestContext
    source_event: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageReader:
    database: Database
    queries: Queries

    async def of(self, request_id: UUID) -> Lineage | None:
        row = await self.database.fetchrow(self.queries.lineage, request_id)
        if row is None:
            return None
        context = RequestContext.model_validate_json(to_json(row["request_context"]))
        return Lineage(context=context, source_event=source_event(row["raw_payload"]))

    async def verified(self, notify: NotifyEnvelope) -> tuple[NotifyEnvelope, Mapping[str, Any] | None]:
        """The envelope with the lineage that is on record, and what is answered. An answer needs a request; a message
        that merely names one we do not know keeps what it says of itself.
        """
        known = await self.of(notify.request_id) if notify.request_id is not None else None
        if known is None:
            if notify.delivery.intent != "send":
                raise invalid("request_context.request_id", "no such request: there is nothing to answer")
            return notify, None
        return notify.model_copy(update={"request_context": answered(known.context)}), known.source_event


def answered(context: RequestContext) -> NotifyContext:
    return NotifyContext(
        request_id=context.request_id,
        received_at=context.received_at,
        source_channel=context.source_channel,
        source_endpoint_identity=context.source_endpoint_identity,
        source_sender_identity=context.source_sender_identity,
        source_thread_identity=context.source_thread_identity,
        trace_context=context.trace_context,
    )
