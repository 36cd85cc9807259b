"""The life of a backfill job.

    create ──> pending ── poll ──> active ── progress ──> completed | error
                  ^                  |
                  |                  ├── the day's cost reached the cap ──> cost_capped ─┐
                  └──────── resume ──┴── pause ──> paused ─────────────────────────────┤
                                                                                        └── cancel ──> cancelled

A report about a job that somebody paused or cancelled meanwhile still counts: the work was done and the money spent.
What it does not do is move the job: the answer tells the connector how the job stands, and it stops.
"""

from __future__ import annotations

from collections.abc import Mapping

from butlers.operations.backfill import Deed, Status

TRANSITIONS: Mapping[Deed, tuple[tuple[Status, ...], Status]] = {
    Deed.PAUSE: ((Status.PENDING, Status.ACTIVE), Status.PAUSED),
    Deed.CANCEL: ((Status.PENDING, Status.ACTIVE, Status.PAUSED, Status.COST_CAPPED), Status.CANCELLED),
    Deed.RESUME: ((Status.PAUSED, Status.COST_CAPPED), Status.PENDING),
}
ENDED = (Status.COMPLETED, Status.ERROR)  # what a connector may say


def status_after_report(
    status: Status, *, said: Status | None, spent_today_cents: int, daily_cost_cap_cents: int
) -> Status:
    """How a job stands after its connector reported. A job that is done is done, whatever it cost."""
    if status is not Status.ACTIVE:
        return status
    if said in ENDED:
        return said
    return Status.COST_CAPPED if spent_today_cents >= daily_cost_cap_cents else Status.ACTIVE
