"""Switchboard's record of what butlers asked to say: in words that claim no more than is known, and not for ever."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import butlers.switchboard
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.retention import add_months
from tests.scenarios.messenger_door import call, fault, request_said, wish
from tests.scenarios.shared_system import running, system
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures
MIGRATION = Path(butlers.switchboard.__file__).parent / "migrations" / "0002_notifications.sql"


async def dispatch(running: RunningSystem, message: str, **fields: Any) -> dict[str, Any]:
    return await call(running, "switchboard", "notify.dispatch", wish(message, **fields), caller="health")


async def recorded(running: RunningSystem, message: str) -> list[dict[str, Any]]:
    query = "select * from switchboard.notifications where message = $1 order by created_at, id"
    return [dict(row) for row in await running.database.fetch(query, message)]


async def test_the_record_says_what_was_known(running: RunningSystem) -> None:
    sent = await dispatch(running, "all is well", recipient="81")
    await fault(running, "drop_after")
    doubtful = await dispatch(running, "did it arrive?", recipient="82")
    await running.control("POST", "/users/83/block")
    blocked = await dispatch(running, "unwanted", recipient="83")
    assert doubtful["delivery"]["status"] == "uncertain", doubtful
    for message, answer, status in (
        ("all is well", sent, "sent"),
        ("did it arrive?", doubtful, "uncertain"),
        ("unwanted", blocked, "failed"),
    ):
        [row] = await recorded(running, message)
        assert (row["status"], str(row["delivery_id"])) == (status, answer["delivery"]["delivery_id"])


async def test_a_refusal_is_an_answer(running: RunningSystem) -> None:
    await call(
        running, "messenger", "messenger_recipient_suppress", {"channel": "telegram", "target": "85", "reason": "x"}
    )
    refused = await dispatch(running, "not to him", recipient="85")
    assert refused["error"]["class"] == "validation_error"
    [row] = await recorded(running, "not to him")
    assert (row["status"], row["delivery_id"]) == ("failed", None)


async def test_a_messenger_that_does_not_answer_leaves_it_unknown(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, names=["switchboard", "health"]) as running:
        answer = await dispatch(running, "hello?", recipient="84")
        assert answer["error"]["class"] == "target_unavailable"
        [row] = await recorded(running, "hello?")
        assert (row["status"], row["delivery_id"], row["error"]) == ("unknown", None, answer["error"]["message"])


async def test_what_messenger_still_had_is_shown_with_what_became_of_it(running: RunningSystem) -> None:
    request_id, _ = await request_said(running, "I weigh 81 kg")
    await running.finished(request_id)
    anna = uuid4()
    await running.database.execute(
        "insert into shared.contacts (id, name, created_at, updated_at) values ($1, 'Anna', now(), now())", anna
    )
    context = {"request_id": request_id}
    answer = await dispatch(running, "news of him", contact_id=str(anna), request_context=context)
    assert answer["delivery"]["status"] == "pending_missing_identifier", answer
    assert await shown(running, request_id, answer) == ("pending", "pending_missing_identifier")
    await running.database.execute(
        "insert into shared.contact_info (id, contact_id, type, value, is_primary, created_at)"
        " values (gen_random_uuid(), $1, 'telegram', '86', true, now())",
        anna,
    )
    await running.until(lambda: running.answers(86))

    async def delivered() -> bool:
        return await shown(running, request_id, answer) == ("pending", "delivered")

    await running.until(delivered)


async def shown(running: RunningSystem, request_id: str, answer: dict[str, Any]) -> tuple[str, str]:
    """How the trace of a request tells of a notification: what was known then, and how its delivery stands now."""
    trace = await running.request(request_id)
    [line] = [one for one in trace["notifications"] if one["delivery_id"] == answer["delivery"]["delivery_id"]]
    return line["status"], line["delivery_status"]


@pytest.mark.parametrize("months", [1, 3])
async def test_the_record_goes_with_the_months_of_the_inbox(
    tmp_path: Path, postgres_server: EmbeddedPostgres, months: int
) -> None:
    async with running_system(
        tmp_path, postgres_server, names=["switchboard"], start=False, inbox_keep_months=months
    ) as running:
        this_month = running.clock.now().date().replace(day=1)
        oldest = datetime.combine(add_months(this_month, -months), time(), UTC)
        for message, moment in (("too old", oldest - timedelta(seconds=1)), ("kept", oldest)):
            await running.database.execute(
                "insert into switchboard.notifications (id, source_butler, channel, message, status, created_at)"
                " values (gen_random_uuid(), 'health', 'telegram', $1, 'sent', $2)",
                message,
                moment,
            )
        await running.start()
        assert (len(await recorded(running, "too old")), len(await recorded(running, "kept"))) == (0, 1)


async def test_a_record_of_before_gets_its_delivery_and_the_truth(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, names=["switchboard"], start=False) as running:
        for statement in (
            "alter table switchboard.notifications drop column delivery_id, drop constraint notifications_status_check",
            "alter table switchboard.notifications add constraint notifications_status_check"
            " check (status in ('pending', 'sent', 'failed', 'read'))",
        ):
            await running.database.execute(statement)
        delivery = uuid4()
        for message, metadata, error in (
            ("in doubt", {"delivery": {"delivery_id": str(delivery), "status": "uncertain"}}, "no answer"),
            ("no answer", {"delivery": None}, "messenger gave no answer within 30 s"),
            ("refused", {"delivery": None}, "is suppressed"),
        ):
            await running.database.execute(
                "insert into switchboard.notifications"
                " (id, source_butler, channel, message, status, metadata, error, created_at)"
                " values (gen_random_uuid(), 'health', 'telegram', $1, 'failed', $2, $3, now())",
                message,
                metadata,
                error,
            )
        await running.database.execute(MIGRATION.read_text(encoding="utf-8").replace("{schema}", "switchboard"))
        found = [(await recorded(running, message))[0] for message in ("in doubt", "no answer", "refused")]
        assert [(row["status"], row["delivery_id"]) for row in found] == [
            ("uncertain", delivery),
            ("unknown", None),
            ("failed", None),
        ]
