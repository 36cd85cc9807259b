"""Recipient, idempotency, admission, breaker: in this order, and without any deed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.errors import ErrorClass
from butlers.messenger.admission_rules import (
    AdmissionState,
    Admitted,
    Budgets,
    Known,
    RecipientRule,
    Refused,
    before_admission,
    decide,
    moved,
)
from butlers.messenger.config import DeliverySection, RecipientsSection
from butlers.messenger.delivery import NewDelivery

from .given import LINEAGE, at, new_delivery
from .given import START as NOW

NEW = new_delivery()
FIRST = UUID(int=1)
LISTED = RecipientsSection(deny=["telegram:7"])
GONE = RecipientRule(rule="suppressed", moved_to=None, reason="blocked us", since=at(-60))
MOVED = RecipientRule(rule="moved", moved_to="-1007", reason="a supergroup", since=at(-60))
FULL = Budgets(in_flight=100)


def policy(recipients: RecipientsSection | None = None) -> DeliverySection:
    return DeliverySection(recipients=recipients or RecipientsSection())


def given_state(
    *,
    known: bool = False,
    rule: RecipientRule | None = None,
    there: RecipientRule | None = None,  # about the address that 7 has moved to
    budgets: Budgets | None = None,
) -> AdmissionState:
    rules = {("telegram", target): one for target, one in (("7", rule), ("-1007", there)) if one is not None}
    keys = {NEW.idempotency_key: FIRST} if known else {}
    return AdmissionState(known=keys, recipients=rules, budgets=budgets or Budgets())


def rule_of(verdict: object) -> str:
    assert isinstance(verdict, Refused)
    return verdict.rule


@given(denied=st.booleans(), known=st.booleans(), gone=st.booleans(), full=st.booleans())
def test_the_lists_the_key_the_recipient_the_budgets(denied: bool, known: bool, gone: bool, full: bool) -> None:
    state = given_state(known=known, rule=GONE if gone else None, budgets=FULL if full else None)
    verdict = decide(NEW, policy(LISTED if denied else None), state, NOW)
    if denied:
        assert rule_of(verdict) == "not_permitted"
    elif known:
        assert verdict == Known(delivery_id=FIRST)
    elif gone:
        assert rule_of(verdict) == "suppressed"
    elif full:
        assert rule_of(verdict) == "in_flight"
    else:
        assert isinstance(verdict, Admitted)


@pytest.mark.parametrize(("recipients", "rule"), [(LISTED, None), (None, GONE)])
def test_a_recipient_who_may_not_be_written_to_is_the_callers_mistake(
    recipients: RecipientsSection | None, rule: RecipientRule | None
) -> None:
    verdict = decide(NEW, policy(recipients), given_state(rule=rule), NOW)
    assert isinstance(verdict, Refused)
    assert (verdict.error.error_class, verdict.error.retryable) == (ErrorClass.VALIDATION_ERROR, False)


@pytest.mark.parametrize(("wrote_at", "passes"), [(-61, False), (-60, False), (-59, True), (None, False)])
def test_whoever_writes_after_blocking_us_is_answered(wrote_at: float | None, passes: bool) -> None:
    context: dict[str, Any] = LINEAGE | ({"received_at": at(wrote_at).isoformat()} if wrote_at is not None else {})
    answer = new_delivery(intent="reply", request_context=context)
    assert isinstance(decide(answer, policy(), given_state(rule=GONE), NOW), Admitted) == passes
    unasked = new_delivery(request_context=context)
    assert rule_of(decide(unasked, policy(), given_state(rule=GONE), NOW)) == "suppressed"


def test_a_recipient_who_moved_is_written_to_at_the_new_address_under_the_same_key() -> None:
    there = moved(NEW, given_state(rule=MOVED).recipients)
    assert (there.target, there.id, there.idempotency_key) == ("-1007", NEW.id, NEW.idempotency_key)
    assert [(decision.rule, decision.verdict) for decision in there.decisions] == [("recipient", "moved")]
    assert moved(NEW, given_state(rule=GONE).recipients) is NEW
    assert moved(NEW, {}) is NEW


def test_a_recipient_who_moved_pays_from_the_budget_of_the_new_address() -> None:
    verdict = decide(NEW, policy(), given_state(rule=MOVED), NOW)
    assert isinstance(verdict, Admitted)
    assert "recipient:telegram.bot:-1007" in verdict.buckets
    assert "recipient:telegram.bot:7" not in verdict.buckets


def test_without_an_address_only_the_key_counts() -> None:
    nameless: NewDelivery = new_delivery(target=None)
    strict = policy(RecipientsSection(allow=["email:*"]))
    assert before_admission(nameless, strict, given_state()) is None
    assert before_admission(nameless, strict, given_state(known=True)) == Known(delivery_id=FIRST)


@pytest.mark.parametrize("denied", ["telegram:7", "telegram:-1007"])
def test_both_addresses_of_a_recipient_who_moved_must_be_permitted(denied: str) -> None:
    strict = policy(RecipientsSection(deny=[denied]))
    assert rule_of(decide(NEW, strict, given_state(rule=MOVED), NOW)) == "not_permitted"


def test_a_recipient_who_moved_may_be_suppressed_at_the_new_address() -> None:
    assert rule_of(decide(NEW, policy(), given_state(rule=MOVED, there=GONE), NOW)) == "suppressed"
