"""The owner is told once about each thing that needs a decision, and every time that it needs one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from butlers.channels.adapter import Certainty, NotSent
from butlers.errors import TimeoutExceeded
from butlers.messenger.parking import Notices
from butlers.messenger.preparation import Preparation
from tests.unit.messenger.admission_door import limits
from tests.unit.messenger.given import AddressBook, notify

from .core import Core

DOUBT = NotSent(error=TimeoutExceeded("no answer"), certainty=Certainty.UNCERTAIN)
INTERVAL_S = 60.0


def notices(core: Core, *, room: int = 100, book: AddressBook | None = None) -> Notices:
    preparation = Preparation(
        contacts=book or AddressBook(),
        channels={"telegram.bot", "email.bot"},
        own_address="",
        clock=core.clock,
        new_id=core.new_id,
    )
    return Notices(
        database=core.database,
        queries=core.queries_of("parking"),
        admission=core.admission(limits(in_flight=room)),
        preparation=preparation,
        clock=core.clock,
        interval_s=INTERVAL_S,
    )


async def doubtful(core: Core, *targets: str, **words: Any) -> list[UUID]:
    """Deliveries of which nobody knows whether they arrived."""
    found = [await core.take(target, **words) for target in targets]
    for delivery in await core.claim():
        await core.finish(core.end(delivery, DOUBT, "uncertain"))
    return found


async def told(core: Core, notice: UUID | None) -> str:
    """The text of a notice, which is sent at once."""
    assert notice is not None
    delivery = next(one for one in await core.claim() if one.id == notice)
    await core.finish(core.end(delivery))
    return str((await core.row(notice))["message"])


async def test_one_notice_names_what_came_up_and_is_not_repeated(core: Core) -> None:
    first, second = await doubtful(core, "7", "8")
    text = await told(core, await notices(core).tell())
    assert str(first) in text and str(second) in text
    assert not any(row["tell_owner"] for row in await core.rows("delivery_requests"))
    core.clock.advance(INTERVAL_S)
    assert await notices(core).tell() is None


async def test_a_notice_waits_for_its_interval(core: Core) -> None:
    await doubtful(core, "7")
    await told(core, await notices(core).tell())
    (second,) = await doubtful(core, "8")
    core.clock.advance(INTERVAL_S - 1)
    assert await notices(core).tell() is None
    core.clock.advance(1)
    assert str(second) in await told(core, await notices(core).tell())


async def test_a_delivery_that_is_in_doubt_again_is_told_again(core: Core) -> None:
    (delivery,) = await doubtful(core, "7")
    await told(core, await notices(core).tell())
    await core.database.execute(
        core.queries_of("release").settle_uncertain, delivery, "pending", "ann", core.clock.now(), "send_again"
    )
    assert await core.readmission().admit() == 1
    await core.finish(core.end(await core.claim_one(), DOUBT, "uncertain"))
    core.clock.advance(INTERVAL_S)
    assert str(delivery) in await told(core, await notices(core).tell())


async def test_a_notice_that_does_not_pass_is_not_lost(core: Core) -> None:
    await doubtful(core, "7")
    notice = await notices(core, room=1).tell()
    assert notice is not None
    await doubtful(core, "8")
    await core.begin_as(notice, "in_progress")
    core.clock.advance(INTERVAL_S)
    assert await notices(core, room=1).tell() is None
    assert await notices(core, room=9).tell() is not None


async def test_a_notice_in_doubt_is_not_told_about(core: Core) -> None:
    await doubtful(core, "7")
    notice = await notices(core).tell()
    (delivery,) = await core.claim()
    assert delivery.id == notice
    await core.finish(core.end(delivery, DOUBT, "uncertain"))
    core.clock.advance(INTERVAL_S)
    assert await notices(core).tell() is None


async def test_a_butlers_own_key_does_not_pass_for_a_notice(core: Core) -> None:
    envelope = notify(idempotency_key="notice:mine")
    (delivery,) = await doubtful(core, "7", notify=envelope)
    assert str(delivery) in await told(core, await notices(core).tell())


@pytest.mark.parametrize("owner", [True, False])
async def test_whoever_has_no_owner_to_tell_keeps_it(core: Core, owner: bool) -> None:
    await doubtful(core, "7")
    book = AddressBook(owner=owner)
    book.known.clear()
    assert await notices(core, book=book).tell() is None
    assert [row["tell_owner"] for row in await core.rows("delivery_requests")] == [True]
