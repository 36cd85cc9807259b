"""Messages to people, from every door to what the simulated providers received (seed 004)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.scenarios.messenger_door import call, fault, mails
from tests.scenarios.outbound_door import (
    attempts,
    cli,
    cli_json,
    get,
    person,
    post,
    prefer,
    put_forward,
    running,
    send,
    system,
    until_state,
    work,
)
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

_ALWAYS = {"start_time": "00:00", "end_time": "00:00", "timezone": "UTC"}


def _address() -> str:
    return f"{uuid4().hex[:12]}@people.example"


def _chat() -> str:
    return str(uuid4().int % 10**9 + 10**6)


async def _revoke(running: RunningSystem, subject: str, permission: str) -> None:
    await post(running, "/entitlements/revoke", {"subject": subject, "permission": permission})


async def _grant(running: RunningSystem, subject: str, permission: str) -> None:
    await post(running, "/entitlements", {"subject": subject, "permission": permission})


async def test_a_message_reaches_people_from_http_mcp_and_the_command_line(running: RunningSystem) -> None:
    chat, address = _chat(), _address()
    ann, bob = await person(running, f"Ann {chat}", telegram=chat), await person(running, "Bob", email=address)

    answer = await send(running, ann, f"email:{address}", subject="Greeting")
    assert [(row["recipient_id"], row["channel"]) for row in answer["queued"]] == [(ann, "telegram"), (bob, "email")]
    for id in (ann, bob):
        await until_state(running, answer, id, "delivered")
    by_mcp = await call(running, "travel", "send_message", {"message": "Gate 7", "recipient_ids": [f"ann {chat}"]})
    await until_state(running, by_mcp, ann, "delivered")
    by_cli = await cli_json(running, "send", "From a person", "--to", f"telegram:{chat}")
    await until_state(running, by_cli, ann, "delivered")

    assert await running.answers(int(chat)) == ["[switchboard] Hello", "[travel] Gate 7", "[switchboard] From a person"]
    [mail] = [mail for mail in await mails(running) if mail["recipients"][0]["address"] == address]
    assert (mail["subject"], mail["text"]) == ("[switchboard] Greeting", "Hello")
    shown = await get(running, f"/messages/{answer['message_id']}")
    assert [row["state"] for row in shown["recipients"]] == ["delivered", "delivered"]
    for row in shown["recipients"]:
        assert [each["state"] for each in row["history"]] == ["planned", "queued", "sending", "delivered"]
        [attempt] = row["attempts"]
        assert attempt["outcome"] == "delivered"
        delivery = await get(running, f"/deliveries/{attempt['delivery_id']}")
        assert delivery["status"] == "delivered"
    printed = (await cli(running, "why", answer["message_id"])).stdout
    assert f"{ann}: delivered" in printed


async def test_the_owner_gets_what_names_nobody(running: RunningSystem) -> None:
    before = len(await running.answers())
    answer = await call(running, "health", "send_message", {"message": "Drink water"})
    owner = answer["queued"][0]["recipient_id"]

    await until_state(running, answer, owner, "delivered")

    assert (await running.answers())[before:] == ["[health] Drink water"]


@pytest.mark.scenario("D4-001", "D4-006", "D4-007")
async def test_the_senders_permission_comes_before_the_recipients(running: RunningSystem) -> None:
    ann = await person(running, "Ann", telegram=_chat())
    await _grant(running, ann, "!messages:receive:*")
    await _revoke(running, "role:everyone", "messages:send:*")

    # Given neither may: the sender is the reason, for everybody, and nothing is queued.
    answer = await send(running, ann)
    assert answer["queued"] == []
    assert [(row["recipient_id"], row["reason"]) for row in answer["blocked"]] == [(ann, "sender-permission")]

    # Given the sender may, the recipient is.
    await _grant(running, "operator", "messages:send:telegram")
    answer = await send(running, ann)
    assert [(row["recipient_id"], row["reason"], row["detail"]) for row in answer["blocked"]] == [
        (ann, "recipient-permission", "messages:receive:telegram")
    ]
    stored = await running.database.fetch("SELECT reason FROM outbound.blocked_recipients ORDER BY created_at")
    assert [row["reason"] for row in stored] == ["sender-permission", "recipient-permission"]

    # Given both may, it is delivered.
    await _revoke(running, ann, "!messages:receive:*")
    answer = await send(running, ann)
    assert (await until_state(running, answer, ann, "delivered"))["channel"] == "telegram"


@pytest.mark.scenario("D4-002")
async def test_the_channel_is_the_persons_then_the_organizations_then_the_systems_then_any(
    running: RunningSystem,
) -> None:
    ann = await person(running, "Ann", telegram=_chat(), email=_address())

    async def channel() -> str:
        answer = await send(running, ann, organization_id="acme", event_type="invoice")
        assert (await until_state(running, answer, ann, "delivered"))["channel"] == answer["queued"][0]["channel"]
        return str(answer["queued"][0]["channel"])

    assert await channel() == "telegram"  # any enabled channel, in the system's order
    matrix: dict[str, Any] = {"notifications": {"matrix": {"invoice": {"email": True}}}}
    await _defaults(running, "system", matrix)
    assert await channel() == "email"
    await _defaults(running, "organization:acme", {"notifications": {"matrix": {"invoice": {"telegram": True}}}})
    assert await channel() == "telegram"
    await prefer(running, ann, matrix)
    assert await channel() == "email"


async def _defaults(running: RunningSystem, scope: str, document: dict[str, Any]) -> None:
    await running.database.execute(
        "INSERT INTO outbound.defaults (scope, document, updated_at) VALUES ($1, $2, now())", scope, document
    )


@pytest.mark.scenario("D4-009")
async def test_an_explicit_opt_out_always_wins(running: RunningSystem) -> None:
    ann = await person(running, "Ann", telegram=_chat(), email=_address())
    await _defaults(
        running,
        "system",
        {"notifications": {"matrix": {"invoice": {"telegram": True, "email": True}}}, "critical_events": ["invoice"]},
    )
    await _defaults(running, "organization:acme", {"notifications": {"matrix": {"invoice": {"telegram": True}}}})
    await prefer(running, ann, {"notifications": {"matrix": {"invoice": {"telegram": False}}}})

    fields: dict[str, Any] = {"organization_id": "acme", "event_type": "invoice", "priority": "urgent"}
    answer = await send(running, ann, **fields)
    assert (await until_state(running, answer, ann, "delivered"))["channel"] == "email"

    await prefer(running, ann, {"notifications": {"matrix": {"invoice": {"telegram": False, "email": False}}}})
    answer = await send(running, ann, **fields)
    assert (answer["queued"], answer["blocked"][0]["reason"]) == ([], "no-channel")


@pytest.mark.scenario("D4-003")
async def test_quiet_hours_defer_to_the_next_delivery_window(running: RunningSystem) -> None:
    chat = _chat()
    ann = await person(running, "Ann", telegram=chat)
    now = running.clock.now()
    start, end = now - timedelta(hours=1), now + timedelta(hours=2)
    window = {"start_time": f"{start:%H:%M}", "end_time": f"{end:%H:%M}", "timezone": "UTC"}
    await prefer(running, ann, {"quietHours": window})

    answer = await send(running, ann)
    opens = end.replace(second=0, microsecond=0)
    assert datetime.fromisoformat(answer["queued"][0]["scheduled_at"]) == opens
    queued = await running.database.fetchval("SELECT scheduled_at FROM outbound.queue")
    assert queued == opens

    put_forward(running, hours=1)
    await running.run_service("switchboard", "outbound feeder")
    assert (await work(running, answer, ann))["state"] == "queued"
    assert await running.answers(int(chat)) == []
    put_forward(running, hours=1)
    ended = await until_state(running, answer, ann, "delivered")

    assert ended["ended_at"] >= opens
    assert await running.answers(int(chat)) == ["[switchboard] Hello"]


@pytest.mark.scenario("D4-010")
async def test_windows_days_and_zones_make_one_schedule_that_explain_shows_and_the_queue_has(
    running: RunningSystem,
) -> None:
    ann = await person(running, "Ann", telegram=_chat())
    today = running.clock.now().isoweekday()
    other = today % 7 + 1
    documents: list[tuple[dict[str, Any], bool]] = [
        (_ALWAYS | {"days_of_week": [other]}, False),  # of another day
        (_ALWAYS | {"days_of_week": [today], "timezone": "Pacific/Kiritimati"}, True),
    ]
    for window, may_hold in documents:
        await prefer(running, ann, {"quietHours": [window]})
        body = {"message": "Hello", "recipient_ids": [ann]}
        explained = [(await post(running, "/messages/explain", body))["recipients"][0] for _ in range(2)]
        assert explained[0]["quiet_hours"][0]["is_quiet"] == explained[1]["quiet_hours"][0]["is_quiet"]
        shown = explained[0]["quiet_hours"][0]
        answer = await send(running, ann)
        scheduled = datetime.fromisoformat(answer["queued"][0]["scheduled_at"])
        if shown["is_quiet"]:
            assert may_hold
            assert scheduled == datetime.fromisoformat(shown["ends_utc"])
            assert scheduled == datetime.fromisoformat(shown["ends_local"])
            entry = await running.database.fetchval("SELECT scheduled_at FROM outbound.queue")
            assert entry == scheduled
        else:
            assert abs(scheduled - running.clock.now()) < timedelta(minutes=1)
        assert shown["timezone"] == window["timezone"]


_FIRST, _CAP = 40, 100


@pytest.mark.parametrize(
    ("retry", "metadata", "delays"),
    [
        pytest.param({"backoff_strategy": "none", "max_attempts": 5}, {}, [], marks=pytest.mark.scenario("D4-011")),
        pytest.param(
            {"backoff_strategy": "linear", "initial_delay_seconds": _FIRST},
            {},
            [_FIRST, _FIRST + 60],
            marks=pytest.mark.scenario("D4-012"),
        ),
        pytest.param(
            {"backoff_strategy": "exponential", "initial_delay_seconds": _FIRST, "max_attempts": 4},
            {"max_backoff_seconds": _CAP},
            [_FIRST, 2 * _FIRST, _CAP],
            marks=pytest.mark.scenario("D4-013"),
        ),
        pytest.param(
            {"backoff_strategy": "custom", "schedule_seconds": [30, 90]},
            {},
            [30, 90],
            marks=pytest.mark.scenario("D4-014"),
        ),
        pytest.param(
            {"backoff_strategy": "linear", "initial_delay_seconds": _FIRST, "max_attempts": 4},
            {"linear_increment_seconds": 30, "max_backoff_seconds": 90},
            [_FIRST, _FIRST + 30, 90],
            marks=pytest.mark.scenario("D4-015", "D4-021"),
        ),
    ],
    ids=["none", "linear", "exponential", "custom", "overridden"],
)
async def test_a_failure_is_retried_as_the_policy_in_the_queue_says(
    running: RunningSystem, retry: dict[str, Any], metadata: dict[str, Any], delays: list[int]
) -> None:
    chat = _chat()
    ann = await person(running, "Ann", telegram=chat)
    await fault(running, "error_5xx", times=10)
    answer = await send(running, ann, policy={"retry": retry, "metadata": metadata})
    payload = await running.database.fetchval("SELECT payload FROM outbound.queue")
    assert payload["retry_policy"]["backoff_strategy"] == retry["backoff_strategy"]
    # What is stored of the message says otherwise from here on: the policy in the queue's entry decides.
    other = {"max_attempts": 10, "backoff_strategy": "linear", "initial_delay_seconds": 7777}
    await running.database.execute(
        "UPDATE outbound.messages SET document = jsonb_set(document, '{delivery_policy,retry}', $1)", other
    )

    for number, delay in enumerate(delays, start=1):
        row = await _waits_for_retry(running, answer, ann, number)
        ended = (await attempts(running, answer))[number - 1]["ended_at"]
        assert abs((row["scheduled_at"] - ended).total_seconds() - delay) < 1.0
        put_forward(running, seconds=delay)
    row = await until_state(running, answer, ann, "dead_lettered")

    made = await attempts(running, answer)
    assert [attempt["outcome"] for attempt in made] == ["failed"] * (len(delays) + 1)
    # Messenger, with the retries it ships with, has added none of its own.
    asked = await running.database.fetchval(
        "SELECT count(*) FROM messenger.delivery_attempts JOIN messenger.delivery_requests AS request"
        " ON request.id = delivery_id WHERE request.target_identity = $1",
        chat,
    )
    assert asked == len(made)
    assert (row["failed_channels"], row["reason"]) == (["telegram"], "undeliverable")
    await running.until(lambda: _is_empty(running))


async def _is_empty(running: RunningSystem) -> bool:
    return bool(await running.database.fetchval("SELECT count(*) = 0 FROM outbound.queue"))


async def _waits_for_retry(
    running: RunningSystem, answer: dict[str, Any], person_id: str, number: int
) -> dict[str, Any]:
    async def waits() -> dict[str, Any]:
        row = await work(running, answer, person_id)
        return row if row["state"] == "queued" and row["attempts"] == number else {}

    return await running.until(waits)


@pytest.mark.scenario("D4-004")
async def test_the_queue_keeps_the_order_and_the_worker_retries_and_records_every_attempt(
    running: RunningSystem,
) -> None:
    chat = _chat()
    ann = await person(running, "Ann", telegram=chat)
    # Given three that wait in the queue, across a restart of the system.
    await prefer(running, ann, {"mutes": [{"until": (running.clock.now() + timedelta(hours=1)).isoformat()}]})
    answers = [await send(running, ann, message=f"number {n}") for n in range(3)]
    entries = await running.database.fetch("SELECT key FROM outbound.queue ORDER BY seq")
    assert [row["key"] for row in entries] == [f"{answer['message_id']}:{ann}" for answer in answers]
    await running.restart()
    # When they become due and the provider fails once.
    await fault(running, "error_5xx", times=1)
    await post(running, f"/people/{ann}/preferences/unmute", {})
    retry = await _waits_for_retry(running, answers[0], ann, 1)
    put_forward(running, seconds=61)
    for answer in answers:
        await until_state(running, answer, ann, "delivered")

    assert retry["detail"].startswith("telegram failed")
    # In the order of the queue; the one that failed comes after its retry.
    assert await running.answers(int(chat)) == [f"[switchboard] number {n}" for n in (1, 2, 0)]
    assert [attempt["outcome"] for attempt in await attempts(running, answers[0])] == ["failed", "delivered"]
    assert [len(await attempts(running, answer)) for answer in answers[1:]] == [1, 1]


@pytest.mark.scenario("D4-019")
async def test_what_the_queue_holds_is_in_the_metrics(running: RunningSystem) -> None:
    ann, bob = await person(running, "Ann", telegram=_chat()), await person(running, "Bob", telegram=_chat())
    await prefer(running, ann, {"mutes": [{"until": (running.clock.now() + timedelta(hours=1)).isoformat()}]})
    await send(running, ann)
    answer = await send(running, bob)
    await until_state(running, answer, bob, "delivered")

    await running.run_service("switchboard", "outbound monitor")

    text = (await running.http.get(running.url(path="/metrics"))).text
    samples = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[:1] != "#"}
    found = {name: value for name, value in samples.items() if name.startswith("butlers_outbound_queue")}
    assert next(v for name, v in found.items() if 'state="queued"' in name) == 1
    assert next(v for name, v in found.items() if 'state="in_flight"' in name) == 0
    assert next(v for name, v in found.items() if name.startswith("butlers_outbound_queue_acknowledged_total")) >= 1
    assert any(name.startswith("butlers_outbound_queue_dead_lettered_total") for name in found)
    assert any(name.startswith("butlers_outbound_queue_oldest_age_seconds") for name in found)
    ended = [name for name in samples if name.startswith("butlers_outbound_message_ended_total")]
    assert any('outcome="delivered"' in name for name in ended)


async def test_failover_reaches_the_person_by_the_next_allowed_channel(running: RunningSystem) -> None:
    address, chat = _address(), _chat()
    ann = await person(running, "Ann", telegram=chat, email=address)
    await running.control("POST", f"/users/{chat}/block")

    answer = await send(running, ann, subject="Important")
    row = await until_state(running, answer, ann, "delivered")

    assert (row["channel"], row["failed_channels"]) == ("email", ["telegram"])
    assert [mail["text"] for mail in await mails(running) if mail["recipients"][0]["address"] == address] == ["Hello"]
    assert [attempt["outcome"] for attempt in await attempts(running, answer)] == ["failed", "delivered"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"message": "x", "recipient_ids": ["nobody at all"]}, 404, "recipient_ids"),
        ({"message": "x", "recipient_ids": ["owner", "telegram:no such"]}, 404, "recipient_ids[1]"),
        ({"message": "x", "policy": {"quiet_hours": _ALWAYS | {"timezone": "Mars/Olympus"}}}, 422, "timezone"),
        ({"message": "x", "policy": {"quiet_hours": _ALWAYS | {"start_time": "25:00"}}}, 422, "start_time"),
        ({"message": "x", "policy": {"retry": {"max_attempts": 99}}}, 422, "max_attempts"),
        ({"message": "x", "policy": {"wat": 1}}, 422, "policy.wat"),
        ({"message": "x", "recipient_ids": [str(uuid4()) for _ in range(1_001)]}, 422, "recipient_ids"),
        ({"message": "x", "template_id": "both"}, 422, ""),
        ({"recipient_ids": ["owner"]}, 422, ""),
        ({"template_id": "there is none"}, 404, "template_id"),
        ({"message": "x", "not_after": "2020-01-01T00:00:00Z"}, 422, "not_after"),
        ({"message": "x", "priority": "asap"}, 422, "priority"),
    ],
)
async def test_bad_input_is_refused_by_field_and_nothing_is_queued(
    running: RunningSystem, body: dict[str, Any], status: int, field: str
) -> None:
    for path in ("/messages", "/messages/explain"):
        response = await running.http.post(running.url(path=f"/api{path}"), json=body, headers=running.bearer())
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert error["class"] == "validation_error"
        assert any(field in each["field"] for each in error["fields"]), error
    for table in ("messages", "scheduled_messages", "blocked_recipients", "queue"):
        assert await running.database.fetchval(f"SELECT count(*) FROM outbound.{table}") == 0


async def test_more_than_a_thousand_recipients_are_told_where_to_go(running: RunningSystem) -> None:
    body = {"message": "x", "recipient_ids": [str(uuid4()) for _ in range(1_001)]}
    answer = await post(running, "/messages", body, may_fail=True)

    assert "at most 1,000 recipients" in answer["error"]["message"]
    assert "audience-plan" in answer["error"]["message"]


async def test_a_key_names_one_message(running: RunningSystem) -> None:
    chat = _chat()
    ann = await person(running, "Ann", telegram=chat)
    first = await send(running, ann, idempotency_key="k1")
    again = await send(running, ann, idempotency_key="k1")
    assert again == first
    other = await post(
        running, "/messages", {"message": "Other", "recipient_ids": [ann], "idempotency_key": "k1"}, may_fail=True
    )
    assert "was used for another message" in other["error"]["message"]

    await until_state(running, first, ann, "delivered")
    assert await running.answers(int(chat)) == ["[switchboard] Hello"]
