"""The brake against mail loops: no header decides, only who, in which thread, and how often."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from butlers.messenger.admission_rules import Refused
from butlers.messenger.delivery import AdmissionRequest
from tests.unit.messenger.admission_door import Door, limits
from tests.unit.messenger.given import MAIL_LINEAGE, new_delivery

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)


def answer(*, to: str = "ann@far.example", thread: str | None = None) -> AdmissionRequest:
    context = MAIL_LINEAGE | {"source_sender_identity": to, "source_thread_identity": thread}
    return new_delivery(target=to, channel="email", intent="reply", request_context=context).admission_request


def answered(requests: list[AdmissionRequest], *, every: timedelta) -> int:
    """How many are answered before the first one that is not."""
    door = Door(limits=limits())
    for number, request in enumerate(requests):
        if not door.is_admitted(request, START + number * every):
            return number
    return len(requests)


@pytest.mark.parametrize("seconds", [0, 5, 60, 120, 180])
def test_a_responder_is_answered_five_times_at_most(seconds: float) -> None:
    fresh = [answer(thread=f"<{number}@far.example>") for number in range(50)]  # every mail begins a thread
    assert 1 <= answered(fresh, every=timedelta(seconds=seconds)) <= 5


def test_a_responder_that_changes_its_address_is_known_by_the_thread() -> None:
    moving = [answer(to=f"robot{number}@far.example", thread="<root@far.example>") for number in range(50)]
    assert 1 <= answered(moving, every=timedelta(minutes=1)) <= 5


def test_a_slow_responder_is_stopped_by_the_day() -> None:
    assert 30 <= answered([answer() for _ in range(200)], every=timedelta(minutes=15)) <= 50


def test_a_conversation_of_people_goes_on() -> None:
    """A few mails in a row, then one every quarter of an hour, for a working day."""
    door = Door(limits=limits())
    moments = [START + timedelta(minutes=minute) for minute in (0, 1, 2, *range(20, 400, 15))]
    assert all(door.is_admitted(answer(thread="<root@far.example>"), moment) for moment in moments)
    assert door.is_admitted(answer(to="bob@far.example"), moments[-1])


def test_the_refusal_is_final_and_says_why() -> None:
    door = Door(limits=limits())
    verdicts = [door.ask(answer(), START) for _ in range(5)]
    refused = verdicts[-1]
    assert isinstance(refused, Refused)
    assert (refused.rule, refused.error.retryable) == ("mail_loop", False)
    assert "the limit of automatic answers to this correspondent is 4 in a row" in refused.error.message


def test_other_messages_draw_from_no_brake() -> None:
    door = Door(limits=limits())
    request = AdmissionRequest(channel="email.bot", recipient="ann@far.example", origin="general", intent="send")
    assert all(door.is_admitted(request, START) for _ in range(50))
