"""What an attempt's result means for its delivery."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Sent
from butlers.channels.channel import CertaintyPolicy
from butlers.errors import ClassifiedError, ErrorClass, InternalError, TargetUnavailable, TimeoutExceeded
from butlers.errors import ValidationError as Invalid
from butlers.messenger.attempt import ChannelPolicy, Circumstances, Settlement, settle
from butlers.reliability.error_budget import RETRY_RULE, BudgetMode
from butlers.reliability.retry import RetryPolicy

from .given import START as NOW
from .given import at

RETRY = RetryPolicy(max_attempts=3, initial_delay=1.0, max_delay=60.0)


def settled(
    result: AttemptResult,
    *,
    attempt: int = 1,
    not_after: datetime | None = None,
    retry: RetryPolicy = RETRY,
    certainty: CertaintyPolicy = "never_duplicate",
    mode: BudgetMode = BudgetMode.NORMAL,
    draw: float = 0.5,
    earlier_doubt: bool = False,
) -> Settlement:
    policy = ChannelPolicy(retry=retry, timeout_s=15.0, certainty=certainty)
    around = Circumstances(
        attempt=attempt,
        policy=policy,
        mode=mode,
        now=NOW,
        not_after=not_after,
        in_doubt=earlier_doubt,
        draw=draw,
    )
    return settle(result, around)


def not_sent(error: ClassifiedError) -> NotSent:
    return NotSent(error=error)


def in_doubt(error: ClassifiedError) -> NotSent:
    return NotSent(error=error, certainty=Certainty.UNCERTAIN)


def failing(kind: type[ClassifiedError], retryable: bool, retry_after: float | None = None) -> ClassifiedError:
    return kind("x", retryable=retryable, retry_after=retry_after)


kinds = st.sampled_from([TargetUnavailable, TimeoutExceeded, InternalError])
errors = st.builds(failing, kinds, st.booleans())
deadlines = st.none() | st.integers(-100, 100).map(at)
policies: st.SearchStrategy[CertaintyPolicy] = st.sampled_from(["never_duplicate", "never_lose", "ask"])
parking: st.SearchStrategy[CertaintyPolicy] = st.sampled_from(["never_duplicate", "ask"])
modes = st.sampled_from(BudgetMode)
attempts = st.integers(1, 9)


@given(attempts, deadlines, policies, modes)
def test_sent_is_delivered_whatever_else_holds(
    attempt: int, not_after: datetime | None, certainty: CertaintyPolicy, mode: BudgetMode
) -> None:
    sent = Sent(provider_delivery_id="7")
    settlement = settled(sent, attempt=attempt, not_after=not_after, certainty=certainty, mode=mode)
    assert settlement == Settlement(status="delivered")


@given(errors, attempts, deadlines, parking, modes)
def test_uncertain_is_parked_and_never_retried(
    error: ClassifiedError, attempt: int, not_after: datetime | None, certainty: CertaintyPolicy, mode: BudgetMode
) -> None:
    settlement = settled(in_doubt(error), attempt=attempt, not_after=not_after, certainty=certainty, mode=mode)
    assert settlement.status == "uncertain"
    assert settlement.next_attempt_at is None
    assert settlement.error is not None
    assert settlement.error.retryable is False
    assert settlement.error.error_class is ErrorClass.TIMEOUT
    assert settlement.decision is not None
    assert (settlement.decision.rule, settlement.decision.verdict) == ("certainty", "uncertain")
    assert certainty in settlement.decision.detail


@pytest.mark.parametrize(("attempt", "delay"), [(1, 1), (2, 2)])
def test_a_retryable_failure_is_tried_again_later(attempt: int, delay: float) -> None:
    settlement = settled(not_sent(TargetUnavailable("x")), attempt=attempt)
    assert settlement.status == "awaiting_retry"
    assert settlement.next_attempt_at == at(delay)
    assert settlement.decision is None


def test_the_last_attempt_ends_as_a_dead_letter() -> None:
    error = TargetUnavailable("x")
    settlement = settled(not_sent(error), attempt=3)
    assert (settlement.status, settlement.error, settlement.next_attempt_at) == ("dead_lettered", error, None)


@given(attempts)
def test_what_is_not_retryable_fails_at_once(attempt: int) -> None:
    for error in (Invalid("x"), InternalError("x"), TargetUnavailable("blocked", retryable=False)):
        assert settled(not_sent(error), attempt=attempt).status == "failed"


def test_the_providers_word_is_the_least_wait() -> None:
    settlement = settled(not_sent(TargetUnavailable("x", retry_after=35)))
    assert settlement.next_attempt_at == at(35)


@pytest.mark.parametrize(("seconds", "status"), [(0.5, "expired"), (1, "awaiting_retry"), (5, "awaiting_retry")])
def test_what_could_only_come_too_late_expires(seconds: float, status: str) -> None:
    settlement = settled(not_sent(TargetUnavailable("x")), not_after=at(seconds))
    assert settlement.status == status


@pytest.mark.parametrize("error", [TargetUnavailable("x"), TimeoutExceeded("too late", retryable=False)])
def test_what_was_not_sent_when_its_time_was_over_expires(error: ClassifiedError) -> None:
    assert settled(not_sent(error), not_after=at(-1)).status == "expired"


# --- never_lose ------------------------------------------------------------------------------------------------------


@given(errors, st.integers(1, 2), st.floats(0, 0.999))
def test_a_provider_that_knows_repeats_gets_it_again(error: ClassifiedError, attempt: int, draw: float) -> None:
    settlement = settled(in_doubt(error), attempt=attempt, certainty="never_lose", draw=draw)
    assert settlement.status == "awaiting_retry"
    assert settlement.next_attempt_at is not None and settlement.next_attempt_at > NOW
    assert settlement.decision is not None
    assert (settlement.decision.rule, settlement.decision.verdict) == ("certainty", "resend")


@given(errors, st.integers(3, 9), deadlines)
def test_a_doubt_that_outlives_all_attempts_is_parked_and_not_buried(
    error: ClassifiedError, attempt: int, not_after: datetime | None
) -> None:
    """A dead letter would say that it certainly did not arrive."""
    settlement = settled(in_doubt(error), attempt=attempt, certainty="never_lose", not_after=not_after)
    assert settlement.status == "uncertain"


@pytest.mark.parametrize("seconds", [-5, 0.5])
def test_a_doubt_that_could_only_be_resolved_too_late_is_parked_and_not_expired(seconds: float) -> None:
    settlement = settled(in_doubt(TimeoutExceeded("x")), certainty="never_lose", not_after=at(seconds))
    assert settlement.status == "uncertain"


# --- a doubt outlives its attempt ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "attempt", "not_after"),
    [
        (Invalid("550 go away"), 2, None),  # would be failed
        (TargetUnavailable("x"), 3, None),  # would be dead-lettered
        (TargetUnavailable("x"), 2, at(0.5)),  # would expire
        (TimeoutExceeded("too late", retryable=False), 2, at(-1)),
    ],
)
def test_an_end_does_not_forget_that_an_earlier_attempt_may_have_arrived(
    error: ClassifiedError, attempt: int, not_after: datetime | None
) -> None:
    settlement = settled(
        not_sent(error), attempt=attempt, not_after=not_after, certainty="never_lose", earlier_doubt=True
    )
    assert settlement.status == "uncertain"
    assert settlement.error is not None and error.message in settlement.error.message
    assert "earlier attempt" in settlement.error.message
    assert settlement.decision is not None and "an earlier attempt may have arrived" in settlement.decision.detail
    certain = settled(not_sent(error), attempt=attempt, not_after=not_after, certainty="never_lose")
    assert certain.status != "uncertain"


def test_an_earlier_doubt_keeps_nothing_from_being_tried_again_or_found() -> None:
    again = settled(not_sent(TargetUnavailable("x")), attempt=2, certainty="never_lose", earlier_doubt=True)
    assert again.status == "awaiting_retry"
    assert settled(Sent(provider_delivery_id="7"), attempt=2, earlier_doubt=True).status == "delivered"


# --- a channel whose error budget burns ------------------------------------------------------------------------------


def test_a_burning_channel_is_tried_once_less_and_more_slowly() -> None:
    failure = not_sent(TargetUnavailable("x"))
    first = settled(failure, mode=BudgetMode.TIGHT)
    assert first.next_attempt_at == at(2)
    last = settled(failure, attempt=2, mode=BudgetMode.TIGHT)
    assert last.status == "dead_lettered"
    for settlement in (first, last):
        assert settlement.decision is not None
        assert (settlement.decision.rule, settlement.decision.verdict) == (RETRY_RULE, "tightened")


def test_a_final_refusal_has_nothing_to_do_with_the_error_budget() -> None:
    assert settled(not_sent(Invalid("x")), mode=BudgetMode.TIGHT).decision is None


# --- all of it -------------------------------------------------------------------------------------------------------

JITTERED = RetryPolicy(max_attempts=3, initial_delay=1.0, max_delay=60.0, jitter=0.3)
everything = st.builds(
    Circumstances,
    attempt=attempts,
    policy=st.builds(ChannelPolicy, retry=st.just(JITTERED), timeout_s=st.just(15.0), certainty=policies),
    mode=modes,
    now=st.just(NOW),
    not_after=deadlines,
    in_doubt=st.booleans(),
    draw=st.floats(0, 0.999),
)
failures = st.builds(
    NotSent,
    error=st.builds(failing, kinds, st.booleans(), st.none() | st.floats(0, 1e4)),
    certainty=st.sampled_from([Certainty.NOT_SENT, Certainty.UNCERTAIN]),
)


@given(failures, everything)
def test_a_retry_is_ahead_in_time_in_bounds_and_before_the_deadline(result: NotSent, around: Circumstances) -> None:
    settlement = settle(result, around)
    if settlement.status != "awaiting_retry":
        return
    due, doubt = settlement.next_attempt_at, result.certainty is Certainty.UNCERTAIN
    assert around.attempt < (3 if around.mode is BudgetMode.NORMAL else 2)
    assert around.policy.certainty == "never_lose" if doubt else result.error.retryable
    assert due is not None and due >= NOW + timedelta(seconds=result.error.retry_after or 0)
    assert around.not_after is None or due <= around.not_after
    assert settlement.error is result.error


@given(failures, everything)
def test_an_end_says_no_more_than_is_known(result: NotSent, around: Circumstances) -> None:
    settlement = settle(result, around)
    if settlement.status == "awaiting_retry":
        return
    used_up = around.attempt >= (3 if around.mode is BudgetMode.NORMAL else 2)
    assert settlement.next_attempt_at is None
    assert (settlement.status == "uncertain") == (result.certainty is Certainty.UNCERTAIN or around.in_doubt)
    assert settlement.status != "expired" or around.not_after is not None
    assert settlement.status != "dead_lettered" or (result.error.retryable and used_up)
    assert settlement.status != "failed" or not result.error.retryable
