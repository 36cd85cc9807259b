"""The states of a backfill job: what they are, what may follow what, and their groups.

    create ──> pending ── poll ──> active ── progress ──> completed | error
                  ^                  |
                  |                  ├── the day's cost reached the cap ──> cost_capped ─┐
                  └──────── resume ──┴── pause ──> paused ─────────────────────────────┤
                                                                                        └── cancel ──> cancelled

A report about a job that an operator paused or cancelled meanwhile still counts: the work was done and the money spent.
What it does not do is move the job: the answer tells the connector how the job stands, and it stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Status(StrEnum):
    PENDING = "pending"
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    COST_CAPPED = "cost_capped"
    ERROR = "error"


class JobAction(StrEnum):
    """What an operator can do to a job."""

    PAUSE = "pause"
    CANCEL = "cancel"
    RESUME = "resume"


TRANSITIONS: Mapping[JobAction, tuple[tuple[Status, ...], Status]] = {
    JobAction.PAUSE: ((Status.PENDING, Status.ACTIVE), Status.PAUSED),
    JobAction.CANCEL: ((Status.PENDING, Status.ACTIVE, Status.PAUSED, Status.COST_CAPPED), Status.CANCELLED),
    JobAction.RESUME: ((Status.PAUSED, Status.COST_CAPPED), Status.PENDING),
}
REPORTED_ENDS = (Status.COMPLETED, Status.ERROR)  # what a connector may say
OPEN = (Status.PENDING, Status.ACTIVE)  # a connector may be given it
NEEDS_PERSON = (Status.PAUSED, Status.COST_CAPPED)  # an operator resumes or cancels it
ENDED = (*REPORTED_ENDS, Status.CANCELLED)
GROUPS = {"OPEN": frozenset(OPEN), "NEEDS_PERSON": frozenset(NEEDS_PERSON), "ENDED": frozenset(ENDED)}


def status_after_report(
    status: Status, *, reported: Status | None, spent_today_cents: int, daily_cost_cap_cents: int
) -> Status:
    """How a job stands after its connector reported. A job that is done is done, whatever it cost."""
    if status is not Status.ACTIVE:
        return status
    if reported in REPORTED_ENDS:
        return reported
    return Status.COST_CAPPED if spent_today_cents >= daily_cost_cap_cents else Status.ACTIVE
