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

_SOURCE = ("source_channel", "source_endpoint_identity", "source_sender_identity", "source_thread_identity")


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
        """The envelope with the lineage that is on record, and what is answered. An answer needs a request, and may not
        tell another story of it; a message that merely names one we do not know keeps what it says of itself.
        """
        known = await self.of(notify.request_id) if notify.request_id is not None else None
        if known is None:
            if notify.delivery.intent != "send":
                raise invalid("request_context.request_id", "no such request: there is nothing to answer")
            return notify, None
        if notify.delivery.intent != "send" and _contradicts(notify.request_context, known.context):
            raise invalid("request_context", "no such request: it is on record with other words about its source")
        lineage = NotifyContext.answering(known.context)
        return notify.model_copy(update={"request_context": lineage}), known.source_event


def _contradicts(told: NotifyContext | None, known: RequestContext) -> bool:
    record, claimed = NotifyContext.answering(known), told or NotifyContext()
    return any(getattr(claimed, name) not in (None, getattr(record, name)) for name in _SOURCE)
