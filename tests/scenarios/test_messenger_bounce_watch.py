"""Messenger looks through its mailbox by itself: a report that comes in changes what is known of a delivery."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import (
    attempts,
    certainty,
    deliver,
    forget,
    mail_fault,
    mails,
    quick,
    refusal,
    rows,
    wish,
)
from tests.system import RunningSystem, running_system

GONE = "gone@far.example"
NEVER_TWICE = certainty(email="never_duplicate")  # a lost answer leaves the delivery uncertain

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    tmp_path = tmp_path_factory.mktemp("system")
    roster = quick(tmp_path, NEVER_TWICE)
    async with running_system(tmp_path, postgres_server, roster_dir=roster, bounce_poll_s=0.2) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    await forget(system)
    return system


async def mailed(running: RunningSystem, recipient: str = GONE) -> str:
    """A mail that the server took: its delivery."""
    told = await deliver(running, wish("hello", channel="email", recipient=recipient))
    assert told["delivery"]["status"] == "delivered"
    delivery_id: str = told["delivery"]["delivery_id"]
    return delivery_id


async def reported(running: RunningSystem, **report: Any) -> None:
    """A mail server reports on the mail that it accepted last."""
    number = (await mails(running))[-1]["number"]
    response = await running.http.post(f"{running.mail.control_url}/accepted/{number}/report", json=report)
    assert response.status_code == 201, response.text


async def receipts(running: RunningSystem, delivery_id: str) -> dict[str, dict[str, Any]]:
    query = "select * from messenger.delivery_receipts where delivery_id = $1::text::uuid"
    return {row["receipt_type"]: dict(row) for row in await running.database.fetch(query, delivery_id)}


async def receipt(running: RunningSystem, delivery_id: str, kind: str) -> dict[str, Any]:
    """The receipt, as soon as Messenger's own look at the mailbox has found it: nobody calls a tool here."""

    async def found() -> dict[str, Any]:
        return (await receipts(running, delivery_id)).get(kind, {})

    return await running.until(found)


async def suppressed(running: RunningSystem) -> list[str]:
    query = "select target from messenger.recipient_rules where rule = 'suppressed'"
    return [row["target"] for row in await running.database.fetch(query)]


async def test_a_report_in_the_mailbox_makes_the_delivery_bounced(running: RunningSystem) -> None:
    delivery_id = await mailed(running)
    (mail,) = await mails(running)
    await reported(running, status="5.1.1")
    bounced = await receipt(running, delivery_id, "bounced")
    assert (bounced["provider_delivery_id"], bounced["part"]) == (mail["message_id"], 1)
    assert bounced["metadata"] == {
        "reported": True,
        "permanent": True,
        "reason": "a mail server reported 5.1.1",
    }
    (row,) = await rows(running)
    noted = [(entry["rule"], entry["verdict"]) for entry in row["decisions"]]
    assert ("provider receipt", "suppressed") in noted
    assert await suppressed(running) == [GONE]
    error = await refusal(running, wish("again", channel="email", recipient=GONE))
    assert "suppressed" in error["message"]
    assert len(await mails(running)) == 1
    # The report itself is no message to anybody: no butler was asked to answer it.
    asked = "select count(*) from switchboard.message_inbox where request_context ->> 'source_channel' = 'email'"
    assert await running.database.fetchval(asked) == 0


async def test_a_mailbox_that_is_full_bounces_and_stays_an_address(running: RunningSystem) -> None:
    delivery_id = await mailed(running, "full@far.example")
    await reported(running, status="5.2.2")
    await receipt(running, delivery_id, "bounced")
    assert await suppressed(running) == []
    await mailed(running, "full@far.example")


async def test_a_report_of_arrival_is_kept_too_and_one_of_delay_says_nothing(running: RunningSystem) -> None:
    slow = await mailed(running, "slow@far.example")
    await reported(running, action="delayed", status="4.4.1")
    quicker = await mailed(running, "quick@far.example")
    await reported(running, action="delivered", status="2.1.5")
    await receipt(running, quicker, "delivered")  # reports are read in their order, so the delay has been read
    assert (await receipts(running, slow)).keys() == {"sent"}


async def test_a_lost_answer_is_settled_by_the_report_that_comes_back(running: RunningSystem) -> None:
    """A mail of which nobody knew whether it had left: it did, and it came back for good."""
    await mail_fault(running, phase="dot", kind="drop_after")
    told = await deliver(running, wish("who knows", channel="email", recipient="lost@far.example"))
    delivery_id = told["delivery"]["delivery_id"]
    assert told["delivery"]["status"] == "uncertain"
    await reported(running, status="5.1.1")
    await receipt(running, delivery_id, "bounced")
    (row,) = await rows(running)
    assert (row["status"], row["settled_by"], row["terminal_error_class"]) == (
        "failed",
        "provider receipt",
        "target_unavailable",
    )
    assert [attempt["certainty"] for attempt in await attempts(running, delivery_id)] == ["uncertain"]
    assert (await suppressed(running), len(await mails(running))) == (["lost@far.example"], 1)


async def test_a_mailbox_that_was_away_is_read_when_it_is_back(running: RunningSystem) -> None:
    delivery_id = await mailed(running, "later@far.example")
    await mail_fault(running, server="imap", command="CONNECT", kind="drop_before", times=3)
    await reported(running, status="5.1.1")
    await receipt(running, delivery_id, "bounced")
    assert await suppressed(running) == ["later@far.example"]
