"""What becomes of an attempt whose process died."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.channels.adapter import Certainty
from butlers.channels.channel import CertaintyPolicy
from butlers.messenger.attempt import ChannelPolicy, Circumstances, Settlement
from butlers.messenger.evidence import MOST_LOST, lost_attempt, settle_lost
from butlers.reliability.error_budget import BudgetMode
from butlers.reliability.retry import RetryPolicy

from .given import START as NOW
from .given import at

policies: st.SearchStrategy[CertaintyPolicy] = st.sampled_from(["never_duplicate", "never_lose", "ask"])


def rescued(
    part: int | None,
    *,
    attempt: int = 1,
    certainty: CertaintyPolicy = "never_duplicate",
    late: datetime | None = None,
    earlier_doubt: bool = False,
) -> Settlement:
    retry = RetryPolicy(max_attempts=3, initial_delay=30.0, max_delay=60.0)
    policy = ChannelPolicy(retry=retry, timeout_s=15.0, certainty=certainty)
    around = Circumstances(
        attempt=attempt,
        policy=policy,
        mode=BudgetMode.NORMAL,
        now=NOW,
        not_after=late,
        in_doubt=earlier_doubt,
        draw=0.5,
    )
    return settle_lost(lost_attempt(part), around)


def test_the_record_says_which_part_may_have_left() -> None:
    assert lost_attempt(None).certainty is Certainty.NOT_SENT
    assert lost_attempt(3).certainty is Certainty.UNCERTAIN
    assert lost_attempt(3).response == {"phase": "process ended", "part": 3}


@given(st.integers(1, MOST_LOST - 1), policies)
def test_what_certainly_did_not_leave_goes_out_at_once_though_its_retries_are_used_up(
    attempt: int, certainty: CertaintyPolicy
) -> None:
    settlement = rescued(None, attempt=attempt, certainty=certainty)
    assert (settlement.status, settlement.next_attempt_at) == ("awaiting_retry", NOW)


def test_what_kills_its_process_every_time_is_set_aside_in_the_end() -> None:
    assert rescued(None, attempt=MOST_LOST).status == "dead_lettered"
    assert rescued(None, attempt=MOST_LOST, certainty="never_lose", earlier_doubt=True).status == "uncertain"


@given(st.integers(1, 9), st.integers(1, 99))
def test_what_may_have_left_is_parked(part: int, attempt: int) -> None:
    settlement = rescued(part, attempt=attempt)
    assert settlement.status == "uncertain"


def test_where_repeats_are_recognised_it_goes_out_at_once() -> None:
    settlement = rescued(1, certainty="never_lose")
    assert (settlement.status, settlement.next_attempt_at) == ("awaiting_retry", NOW)
    assert settlement.decision is not None and settlement.decision.verdict == "resend"


@pytest.mark.parametrize(("attempt", "late"), [(3, None), (1, -1.0)])
def test_not_for_ever_and_not_too_late(attempt: int, late: float | None) -> None:
    deadline = at(late) if late is not None else None
    assert rescued(1, attempt=attempt, certainty="never_lose", late=deadline).status == "uncertain"
