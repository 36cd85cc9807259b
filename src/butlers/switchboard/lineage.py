"""What Switchboard itself knows of a request: where an answer to it goes, whatever the payload of the answer says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from butlers.channels.registry import channel_of
from butlers.contracts.context import RequestContext
from butlers.contracts.notify import NotifyContext, NotifyEnvelope
from butlers.storage.database import Database
from butlers.storage.queries import Queries


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
        inbound = channel_of(context.source_channel).inbound
        event = inbound.source_event(row["raw_payload"]) if inbound is not None else None
        return Lineage(context=context, source_event=event)

    async def verified(self, notify: NotifyEnvelope) -> tuple[NotifyEnvelope, Mapping[str, Any] | None]:
        """The envelope with the lineage that is on record, and what is answered."""
        known = await self.of(notify.request_id) if notify.request_id is not None else None
        if known is None:
            return notify.on_record(None), None
        return notify.on_record(NotifyContext.answering(known.context)), known.source_event
