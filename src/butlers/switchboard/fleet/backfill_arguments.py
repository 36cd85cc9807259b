"""What callers say about backfill jobs."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import Field, model_validator

from butlers.contracts.envelope import Identity, Value
from butlers.switchboard.fleet.backfill import Status
from butlers.switchboard.operators.paging import LONGEST_PAGE

Delta = Annotated[int, Field(ge=0, le=1_000_000_000)]  # of one batch


class NewJob(Value):
    connector_type: Identity
    endpoint_identity: Identity
    target_categories: list[Identity] = Field(min_length=1, max_length=100)
    date_from: date
    date_to: date  # included
    rate_limit_per_hour: int = Field(default=100, ge=1, le=1_000_000)
    daily_cost_cap_cents: int = Field(default=500, ge=1, le=1_000_000_000)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.date_to < self.date_from:
            raise ValueError("date_to must not lie before date_from")
        return self


class JobArguments(Value):
    job_id: UUID


class JobsWanted(Value):
    connector_type: Identity | None = None
    endpoint_identity: Identity | None = None
    status: Status | None = None
    cursor: Identity | None = None
    limit: int = Field(default=50, ge=1, le=LONGEST_PAGE)


class PollArguments(Value):
    connector_type: Identity
    endpoint_identity: Identity


class Progress(Value):
    """One batch."""

    job_id: UUID
    rows_processed: Delta
    rows_skipped: Delta
    cost_spent_cents: Delta
    cursor: str | None = Field(default=None, max_length=4_096)
    status: Literal["active", "completed", "error"] | None = None
    error: str | None = Field(default=None, max_length=2_000)
