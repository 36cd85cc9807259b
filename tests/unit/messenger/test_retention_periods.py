"""Which old records may go: the moments, and what stays although it is old."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from butlers.contracts.delivery_state import FINISHED
from butlers.messenger.config import DeliverySection, RetentionSection
from butlers.messenger.upkeep import cutoffs, forgettable_dead_letters, forgettable_deliveries

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CUTOFF = NOW - timedelta(days=365)
LONG_AGO = CUTOFF - timedelta(seconds=1)
OPEN = ("pending", "in_progress", "awaiting_retry", "uncertain", "pending_approval", "pending_missing_identifier")


def row(number: int = 1, first: int | None = None, **fields: Any) -> dict[str, Any]:
    """A delivery that ended long ago, or a replay in the family of another."""
    over = {"status": "delivered", "terminal_at": LONG_AGO, "duplicate_detection": False}
    return {"id": UUID(int=number), "first_id": UUID(int=first or number), **over, **fields}


def gone(*held: dict[str, Any], letters: tuple[int, ...] = ()) -> list[int]:
    return [found.int for found in forgettable_deliveries(held, {UUID(int=n) for n in letters}, CUTOFF)]


def letter(**fields: Any) -> dict[str, Any]:
    return {"id": UUID(int=7), "delivery_id": UUID(int=1), "discarded_at": None, **fields}


# --- moments ---------------------------------------------------------------------------------------------------------


def test_each_period_has_its_moment_and_for_ever_has_none() -> None:
    days = RetentionSection(deliveries_days=365, dead_letters_days=0, actions_days=90)
    assert cutoffs(DeliverySection(retention=days, dedupe_retention_days=30), NOW) == {
        "delivery": NOW - timedelta(days=365),
        "dead_letter": None,
        "action": NOW - timedelta(days=90),
    }


def test_what_answers_for_a_key_is_kept_as_long_as_the_key() -> None:
    week, month = timedelta(days=7), timedelta(days=30)
    days = RetentionSection(deliveries_days=7, dead_letters_days=7, actions_days=7)
    found = cutoffs(DeliverySection(retention=days, dedupe_retention_days=30), NOW)
    assert found == {"delivery": NOW - month, "dead_letter": NOW - week, "action": NOW - month}


@pytest.mark.parametrize("days", [-1, 1e6, float("nan"), "a year"])
def test_a_period_is_a_number_of_days(days: Any) -> None:
    for key in RetentionSection.model_fields:
        with pytest.raises(ValidationError):
            RetentionSection(**{key: days})
        assert RetentionSection(**{key: 0}) != RetentionSection()


# --- deliveries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", sorted(FINISHED))
def test_a_finished_delivery_goes(status: str) -> None:
    assert gone(row(status=status)) == [1]


@pytest.mark.parametrize("status", OPEN)
def test_what_is_not_finished_stays(status: str) -> None:
    assert gone(row(status=status)) == gone(row(status=status, terminal_at=None)) == []


def test_what_is_recent_keyed_or_has_a_dead_letter_stays() -> None:
    assert gone(row(terminal_at=CUTOFF)) == []
    assert gone(row(duplicate_detection=True)) == []
    assert gone(row(status="dead_lettered"), letters=(1,)) == []


families = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(["delivered", "failed", "uncertain", "pending"]), st.booleans()),
    max_size=12,
)


@given(families)
def test_a_family_goes_as_a_whole_or_stays_as_a_whole(drawn: list[tuple[int, str, bool]]) -> None:
    held = [
        row(100 + place, first, status=status, terminal_at=CUTOFF if recent else LONG_AGO)
        for place, (first, status, recent) in enumerate(drawn)
    ]
    removed = set(gone(*held))
    for first in {member["first_id"] for member in held}:
        family = [member for member in held if member["first_id"] == first]
        over = all(m["status"] in FINISHED and m["terminal_at"] < CUTOFF for m in family)
        assert {m["id"].int in removed for m in family} == {over}


def test_one_member_s_dead_letter_holds_the_family_and_no_other() -> None:
    assert gone(row(1), row(2, 1), row(3), letters=(2,)) == [3]


# --- dead letters ----------------------------------------------------------------------------------------------------


def test_a_dead_letter_goes_after_it_was_given_up_or_its_message_arrived() -> None:
    delivery = UUID(int=1)
    assert forgettable_dead_letters([letter(discarded_at=LONG_AGO)], {}, CUTOFF) == [UUID(int=7)]
    assert forgettable_dead_letters([letter()], {delivery: LONG_AGO}, CUTOFF) == [UUID(int=7)]


def test_a_dead_letter_stays_while_somebody_may_want_it() -> None:
    delivery = UUID(int=1)
    assert forgettable_dead_letters([letter()], {}, CUTOFF) == []
    assert forgettable_dead_letters([letter(discarded_at=CUTOFF)], {}, CUTOFF) == []
    assert forgettable_dead_letters([letter()], {delivery: CUTOFF}, CUTOFF) == []
    assert forgettable_dead_letters([letter()], {UUID(int=2): LONG_AGO}, CUTOFF) == []
