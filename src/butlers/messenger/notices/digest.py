"""What the owner reads: one message that names everything that waits for him, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from butlers.contracts.channels import Channel
from butlers.contracts.notify import Delivery, NotifyEnvelope
from butlers.storage.database import Record

ME = "messenger"
KEY = "notice:"
_NAMED = 10  # deliveries that one notice names; more are counted
_WORDS = {
    "uncertain": "may or may not have been sent. Look, then say so: "
    "butlers deliveries settle {id} confirmed_sent (or send_again)",
    "pending_approval": "waits for your approval: butlers approvals approve {action} (or reject)",
    "pending_missing_identifier": "has no address: the contact {contact} has no {channel} identifier",
}


def notice(rows: Sequence[Record], channel: Channel, now: datetime) -> NotifyEnvelope:
    lines = [_line(row) for row in rows[:_NAMED]]
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


def _line(row: Record) -> str:
    what = _WORDS[row["status"]].format(
        id=row["id"], action=row["action_id"], contact=row["contact_id"], channel=row["channel"]
    )
    whom = row["target_identity"] or "a contact"
    return f"- {row['channel']} from {row['origin_butler']} to {whom} {what}"
