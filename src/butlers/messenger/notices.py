"""Telling the owner what needs a person: uncertain deliveries, approvals, missing identifiers.

One message names everything that has come up since the last one, so a bad hour is a few messages and not hundreds. It
is an ordinary delivery in Messenger's name, on record like the rest, and never about another notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from butlers.channels.registry import outbound_names
from butlers.clock import Clock
from butlers.contracts.envelope import Channel
from butlers.contracts.notify import Delivery, NotifyEnvelope
from butlers.errors import ClassifiedError
from butlers.messenger.admission import Admission, Taken
from butlers.messenger.preparation import Preparation
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger")

SOON_S = 10.0  # between notices of channels that ask
ME = "messenger"
KEY = "notice:"
_NAMED = 10  # deliveries that one notice names; more are counted
_WORDS = {
    "uncertain": "may or may not have been sent. Look, then say so: "
    "butlers deliveries settle {id} confirmed_sent (or send_again)",
    "pending_approval": "waits for your approval: butlers approvals approve {action} (or reject)",
    "pending_missing_identifier": "has no address: the contact {contact} has no {channel} identifier",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notices:
    database: Database
    queries: Queries
    admission: Admission
    preparation: Preparation
    clock: Clock
    interval_s: float
    asking: frozenset[str] = frozenset()  # channels whose uncertain deliveries do not wait for the next notice

    async def tell(self) -> UUID | None:
        """Send what has come up, unless the last notice is too recent; returns the notice's delivery."""
        kinds = await self.database.fetch(self.queries.anything_to_tell)
        if not kinds:
            return None
        # A channel whose policy is `ask` wants its answer at once.
        asked = any(kind["status"] == "uncertain" and kind["channel"] in self.asking for kind in kinds)
        interval = timedelta(seconds=SOON_S if asked else self.interval_s)
        last = await self.database.fetchval(self.queries.last_notice)
        if last is not None and self.clock.now() - last < interval:
            return None
        channel = await self._channel()
        return await self._send(channel) if channel is not None else None

    async def _send(self, channel: Channel) -> UUID | None:
        async with self.database.transaction() as connection:
            rows = await connection.fetch(self.queries.to_tell)
            if not rows:
                return None
            try:
                new = await self.preparation.prepare(notice(rows, channel, self.clock.now()), None)
            except ClassifiedError as error:
                log.error("the owner cannot be told", error=error)
                return None
            (entry,) = await self.admission.enter(connection, [new], self.clock.now())
            if not isinstance(entry, Taken):
                return None
            await connection.execute(self.queries.told, [row["id"] for row in rows])
            return new.id

    async def _channel(self) -> Channel | None:
        """The owner's preferred channel, else any that reaches him."""
        owner = await self.preparation.contacts.owner()
        if owner is None:
            return None
        for channel in (owner.preferred_channel, *outbound_names()):
            if channel is None or f"{channel}.bot" not in self.preparation.channels:
                continue
            if await self.preparation.contacts.identifier(owner.id, channel) is not None:
                return channel
        return None


def notice(rows: Sequence[Record], channel: Channel, now: datetime) -> NotifyEnvelope:
    lines = []
    for row in rows[:_NAMED]:
        what = _WORDS[row["status"]].format(
            id=row["id"], action=row["action_id"], contact=row["contact_id"], channel=row["channel"]
        )
        whom = row["target_identity"] or "a contact"
        lines.append(f"- {row['channel']} from {row['origin_butler']} to {whom} {what}")
    if len(rows) > _NAMED:
        lines.append(f"... and {len(rows) - _NAMED} more: butlers deliveries list --status uncertain")
    head = "One delivery needs you:" if len(rows) == 1 else f"{len(rows)} deliveries need you:"
    return NotifyEnvelope(
        origin_butler=ME,
        delivery=Delivery(
            intent="send", channel=channel, message="\n".join([head, *lines]), subject="A decision is needed"
        ),
        # The moment belongs to the key: what was told, settled and is in doubt again is told again.
        idempotency_key=f"{KEY}{rows[0]['id']}:{now.isoformat()}",
    )
