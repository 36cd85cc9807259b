"""What the owner reads."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from butlers.messenger.parking import KEY, notice

from .given import ANNA, START, row


def waiting(number: int, status: str = "uncertain", **changes: Any) -> Any:
    values = {
        "id": UUID(int=number),
        "status": status,
        "channel": "telegram",
        "origin_butler": "health",
        "target_identity": "7",
        "contact_id": None,
        "action_id": None,
    }
    return row(values, **changes)


def text(*rows: Any) -> list[str]:
    return notice(rows, "telegram", START).delivery.message.splitlines()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (waiting(1), f"butlers deliveries settle {UUID(int=1)} confirmed_sent"),
        (waiting(1, "pending_approval", action_id=UUID(int=9)), f"butlers approvals approve {UUID(int=9)}"),
        (
            waiting(1, "pending_missing_identifier", contact_id=ANNA, target_identity=None, channel="email"),
            f"the contact {ANNA} has no email identifier",
        ),
    ],
)
def test_a_notice_says_what_it_is_about_and_what_to_do(found: Any, words: str) -> None:
    head, line = text(found)
    assert head == "One delivery needs you:"
    assert line.startswith(f"- {found['channel']} from health to {found['target_identity'] or 'a contact'} ")
    assert words in line


def test_a_bad_hour_is_one_message_that_names_ten_and_counts_the_rest() -> None:
    lines = text(*(waiting(number) for number in range(1, 14)))
    assert lines[0] == "13 deliveries need you:"
    assert len(lines) == 12 and "and 3 more" in lines[-1]
    assert "more" not in text(*(waiting(number) for number in range(1, 11)))[-1]


def test_a_notice_is_an_ordinary_message_in_messengers_name() -> None:
    told = notice([waiting(1)], "email", START)
    assert (told.origin_butler, told.delivery.channel, told.delivery.intent) == ("messenger", "email", "send")
    assert told.delivery.subject and told.delivery.recipient is None
    assert told.idempotency_key is not None and told.idempotency_key.startswith(KEY)
