"""Two machines that answer each other's mail stop by themselves, whatever their mails look like."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.scenarios.messenger_door import call, mails
from tests.scenarios.shared_system import running, system
from tests.system import RunningSystem

BUTLER_MAIL, OWNER_MAIL = "butler@butlers.example", "owner@butlers.example"

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def arrives(running: RunningSystem, text: str, *, sender: str = OWNER_MAIL, **more: Any) -> dict[str, Any]:
    """A mail comes in and is routed; the request that it became, at its end."""
    message_id = f"<{uuid4().hex}@far.example>"
    body = {"from": sender, "to": BUTLER_MAIL, "subject": text, "text": text, "message_id": message_id} | more
    response = await running.http.post(f"{running.mail.control_url}/messages", json=body)
    assert response.status_code == 201, response.text
    counts = await call(running, "messenger", "email_check_and_route_inbox", {})
    assert counts["routed"] == 1
    request_id = await running.database.fetchval(
        "select request_id from switchboard.message_inbox where raw_payload -> 'headers' ->> 'message-id' = $1",
        message_id,
    )
    return await running.finished(str(request_id))


async def test_a_ping_pong_without_headers_stops_within_five_rounds(running: RunningSystem) -> None:
    """The responder answers every mail of ours with a fresh one: no thread, no header, another subject."""
    last = await arrives(running, "I am out of office, note number 0")
    rounds = 0
    while len(await mails(running)) > rounds:
        rounds += 1
        assert rounds <= 5, "the loop goes on"
        last = await arrives(running, f"I am out of office, note number {rounds}")
    assert rounds >= 3  # a person who writes a few times in a row is answered
    assert last["lifecycle_state"] == "errored"
    assert "so that two machines do not answer each other for ever" in last["lifecycle_error"]["message"]
    kept = "select count(*) from switchboard.message_inbox where normalized_text like '%out of office%'"
    assert await running.database.fetchval(kept) >= rounds + 1  # the mail that is not answered is stored


async def test_the_brake_is_durable_and_others_are_answered(running: RunningSystem) -> None:
    for number in range(5):
        await arrives(running, f"the same robot, note number {number}", sender=OWNER_MAIL)
    count = len(await mails(running))
    await running.restart()
    trace = await arrives(running, "the same robot after a restart", sender="owner+tag@butlers.example")
    assert trace["lifecycle_state"] == "errored"
    assert len(await mails(running)) == count
    trace = await arrives(running, "I paid the electricity bill", sender="bob@far.example")
    assert trace["lifecycle_state"] == "parsed"
    assert len(await mails(running)) == count + 1


@pytest.mark.parametrize(
    ("headers", "sender"),
    [
        ({"X-Auto-Response-Suppress": "All"}, OWNER_MAIL),
        ({"X-Autoreply": "yes"}, OWNER_MAIL),
        ({"X-Autorespond": "vacation"}, OWNER_MAIL),
        ({"X-Loop": "robot@far.example"}, OWNER_MAIL),
        ({"Precedence": "auto_reply"}, OWNER_MAIL),
        ({"List-Unsubscribe": "<mailto:leave@far.example>"}, OWNER_MAIL),
        ({"Feedback-ID": "1:2:3:far"}, OWNER_MAIL),
        ({}, "no-reply@far.example"),
        ({}, "postmaster@far.example"),
    ],
)
async def test_mail_of_machines_is_kept_and_not_answered(
    running: RunningSystem, headers: dict[str, str], sender: str
) -> None:
    trace = await arrives(running, "I paid the electricity bill", sender=sender, headers=headers)
    assert trace["lifecycle_state"] == "errored"
    assert "must not be a reply" in trace["lifecycle_error"]["message"]
    assert await mails(running) == []
