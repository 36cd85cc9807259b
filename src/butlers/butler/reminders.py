"""Reminders: a message that leaves at a later moment, or again and again.

`remind` makes a schedule for one moment. A schedule of butler.toml or `schedule_create` with the job `remind` recurs.
Each run has a key of its own, so that a repeated run is the same message and the next run is another one.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pydantic import Field

from butlers.butler.notifier import OWNER_CHANNEL, Notifier
from butlers.butler.schedules import ParameterizedJob, ScheduledRun
from butlers.contracts.channels import Channel
from butlers.contracts.envelope import Identity, Text, Timestamp, Value
from butlers.errors import from_wire

REMIND = "remind"


class ReminderArguments(Value):
    """What the job is told: `job_args` of a schedule with the job `remind`."""

    message: Text = Field(description="what to say")
    channel: Channel = Field(default=OWNER_CHANNEL, description="the channel it leaves by")
    recipient: Identity | None = Field(
        default=None, description="an address of the channel; without it and without contact_id: the owner"
    )
    contact_id: UUID | None = Field(default=None, description="the contact to remind, instead of an address")
    subject: Identity | None = Field(default=None, description="the subject, on channels that have one")
    key: Identity | None = Field(default=None, description="the identity of a reminder for one moment; set by remind")


class RemindArguments(Value):
    """What the tool is told."""

    message: Text = Field(description="what to say")
    due_at: Timestamp = Field(description="when to say it: RFC 3339 with an offset, in the future")
    channel: Channel = Field(default=OWNER_CHANNEL, description="the channel it leaves by")
    recipient: Identity | None = Field(default=None, description="an address of the channel; without one: the owner")


def remind_job(notifier: Notifier) -> ParameterizedJob:
    async def remind(reminder: ReminderArguments, run: ScheduledRun) -> dict[str, Any]:
        response = await notifier.send(
            reminder.message,
            channel=reminder.channel,
            recipient=reminder.recipient,
            contact_id=reminder.contact_id,
            subject=reminder.subject,
            key=f"remind:{_identity(reminder, run)}",
        )
        if (error := response.error) is not None:
            # Once Messenger has it, its own retries are over, too; trying again would only get the same answer.
            retryable = error.retryable and response.delivery is None
            raise from_wire(error.error_class, error.message, retryable=retryable)
        return response.to_wire()

    return ParameterizedJob(arguments=ReminderArguments, run=remind)


def _identity(reminder: ReminderArguments, run: ScheduledRun) -> str:
    if not run.recurs:  # a crash repeats it, at another moment
        return reminder.key or run.schedule
    return f"{run.schedule}:{run.due_at.isoformat()}"
