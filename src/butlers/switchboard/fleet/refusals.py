"""Refusals of the fleet: what is not there, what is not possible as things are, and who may not ask."""

from __future__ import annotations

from butlers.contracts.envelope import invalid
from butlers.errors import FieldError, ValidationError


class NotPossible(ValidationError):
    """Not as things are; nothing was changed."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}", fields=(FieldError(field=field, error=problem),))


def unknown_connector() -> ValidationError:
    return invalid("endpoint_identity", "no such connector")


def unknown_job() -> ValidationError:
    return invalid("job_id", "no such backfill job")
