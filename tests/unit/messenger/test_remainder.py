"""Whether anything is left to be sent when the part in doubt was confirmed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from butlers.channels.adapter import Outgoing
from butlers.errors import ValidationError
from butlers.messenger.release import anything_left


@dataclass
class Counting:
    parts: int
    resumes: bool = True

    def count_parts(self, outgoing: Outgoing) -> int:
        if self.parts == 0:
            raise ValidationError(f"{outgoing.delivery_id} has nothing to show")
        return self.parts


@dataclass
class Plain:
    resumes: bool


def left(channel: Any, *, confirmed: int = 1, on_record: Collection[int] = ()) -> bool:
    outgoing = Outgoing(
        delivery_id=UUID(int=1),
        idempotency_key="k",
        intent="send",
        target="61",
        message="m",
        parts_sent={part: str(part) for part in on_record},
    )
    return anything_left(outgoing, channel, confirmed=confirmed)


@pytest.mark.parametrize(
    ("parts", "on_record", "confirmed", "expected"),
    [(1, (), 1, False), (3, (), 1, True), (3, (1,), 2, True), (3, (1, 2), 3, False), (2, (2,), 1, False)],
)
def test_parts_that_are_neither_on_record_nor_confirmed_are_left(
    parts: int, on_record: tuple[int, ...], confirmed: int, expected: bool
) -> None:
    assert left(Counting(parts), on_record=on_record, confirmed=confirmed) is expected


def test_a_message_that_is_one_part_has_nothing_left() -> None:
    assert left(Plain(resumes=False)) is False
    assert left(Counting(3, resumes=False)) is False
    assert left(None) is False


def test_a_channel_that_resumes_and_cannot_count_finds_out_itself() -> None:
    assert left(Plain(resumes=True)) is True


def test_what_could_never_be_sent_is_not_gone_on_with() -> None:
    assert left(Counting(0)) is False
