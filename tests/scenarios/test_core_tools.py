"""The tools every butler has, called by the official client with the tokens of operators, butlers and strangers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from butlers.operations.operation import Role
from tests.scenarios.messenger_door import call, fault, mails
from tests.scenarios.shared_system import running, system
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

CORE = {
    "status",
    "trace",
    "trigger",
    "tick",
    "route.execute",
    "state_get",
    "state_set",
    "state_delete",
    "state_list",
    "schedule_list",
    "schedule_create",
    "schedule_update",
    "schedule_delete",
    "sessions_list",
    "sessions_get",
}
SPEAKING = {"notify", "send_message", "remind"}
NEVER = "0 0 30 2 *"  # the thirtieth of February


async def test_every_butler_has_the_core_tools_and_messenger_alone_cannot_speak(running: RunningSystem) -> None:
    for butler in running.roster:
        names = await running.listed_tools(butler)
        assert names >= CORE, butler
        assert names & SPEAKING == (set() if butler == "messenger" else SPEAKING), butler


async def test_the_official_client_calls_tools_of_every_butler(running: RunningSystem) -> None:
    for butler in running.roster:
        async with running.mcp(butler) as client:
            await client.call_tool("state_set", {"key": "official", "value": {"n": 1}})
            got = await client.call_tool("state_get", {"key": "official"})
            assert got.structured_content == {"key": "official", "found": True, "value": {"n": 1}}
            wrong = await client.call_tool("state_get", {"key": 5})
            assert wrong.is_error


async def test_status_says_how_a_butler_is_doing(running: RunningSystem) -> None:
    for butler in running.roster:
        status = await call(running, butler, "status", {})
        assert (status["status"], status["butler"], status["runtime"]) == ("ok", butler, "local")
        ready = (await running.http.get(running.url(butler, "/readyz"))).json()
        assert ready.items() >= status.items()


async def test_state_is_kept_listed_and_forgotten_per_butler(running: RunningSystem) -> None:
    values: dict[str, Any] = {"a/1": {"deep": [1, 2.5, None, "ü"]}, "a/2": "text", "a/3": {"none": None}, "b/1": False}
    for butler in running.roster:
        for key, value in values.items():
            await call(running, butler, "state_set", {"key": key, "value": value})
        assert await call(running, butler, "state_get", {"key": "a/1"}) == {
            "key": "a/1",
            "found": True,
            "value": values["a/1"],
        }
        page = await call(running, butler, "state_list", {"prefix": "a/", "limit": 2})
        assert [entry["key"] for entry in page["entries"]] == ["a/1", "a/2"]
        page = await call(running, butler, "state_list", {"prefix": "a/", "after": "a/2"})
        assert [(entry["key"], entry["value"]) for entry in page["entries"]] == [("a/3", {"none": None})]
        assert (await call(running, butler, "state_delete", {"key": "a/1"}))["deleted"] is True
        assert (await call(running, butler, "state_delete", {"key": "a/1"}))["deleted"] is False
        assert (await call(running, butler, "state_get", {"key": "a/1"}))["found"] is False
    nothing = await call(running, "general", "state_set", {"key": "nothing", "value": None})
    assert [field["field"] for field in nothing["error"]["fields"]] == ["value"]
    await call(running, "general", "state_set", {"key": "mine", "value": 1})
    assert (await call(running, "health", "state_get", {"key": "mine"}))["found"] is False


async def test_schedules_are_made_changed_run_and_removed(running: RunningSystem) -> None:
    made = await call(running, "travel", "schedule_create", {"name": "morning", "cron": "0 7 * * *", "prompt": "Plan"})
    assert made["name"] == "morning"
    twice = await call(running, "travel", "schedule_create", {"name": "morning", "cron": "0 8 * * *", "prompt": "Plan"})
    assert twice["error"]["fields"] == [{"field": "name", "error": "a schedule of this name exists already"}]

    await _due_now(running, "travel", "morning")
    ran = (await call(running, "travel", "tick", {}))["ran"]
    # Without a model nobody carried the prompt out, and the record does not say otherwise.
    assert [(run["name"], run["status"], run["mode"]) for run in ran] == [("morning", "skipped", "runtime")]
    assert (await call(running, "travel", "tick", {}))["ran"] == []
    (session,) = (await call(running, "travel", "sessions_list", {}))["sessions"]
    assert session["trigger_source"] == "schedule:morning"

    changed = await call(running, "travel", "schedule_update", {"name": "morning", "enabled": False})
    assert changed["enabled"] is False
    await _due_now(running, "travel", "morning")
    assert (await call(running, "travel", "tick", {}))["ran"] == []
    (schedule,) = (await call(running, "travel", "schedule_list", {}))["schedules"]
    assert (schedule["name"], schedule["enabled"], schedule["last_result"]["status"]) == ("morning", False, "skipped")
    assert (await call(running, "travel", "schedule_delete", {"name": "morning"}))["deleted"] is True
    assert (await call(running, "travel", "schedule_list", {}))["schedules"] == []


async def test_schedules_that_cannot_be_are_refused(running: RunningSystem) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("schedule_create", {"name": "x", "cron": "whenever", "prompt": "p"}, "cron"),
        ("schedule_create", {"name": "x", "cron": NEVER, "prompt": "p"}, "cron"),
        ("schedule_create", {"name": "x", "cron": "* * * * *"}, "prompt"),
        ("schedule_create", {"name": "x", "cron": "* * * * *", "prompt": "p", "job_name": "j"}, "prompt"),
        ("schedule_create", {"name": "x", "cron": "* * * * *", "job_name": "no such job"}, "job_name"),
        ("schedule_update", {"name": "nobody"}, "name"),
        ("schedule_delete", {"name": "nobody"}, "name"),
    ]
    for tool, arguments, field in wrong:
        answer = await call(running, "travel", tool, arguments)
        assert [f["field"] for f in answer["error"]["fields"]] == [field], (tool, arguments, answer)
    # What butler.toml says cannot be removed by a tool.
    answer = await call(running, "switchboard", "schedule_delete", {"name": "eligibility-sweep"})
    assert answer["error"]["class"] == "validation_error"
    assert await running.database.fetchval("select count(*) from travel.scheduled_tasks") == 0


async def test_trigger_runs_a_prompt_in_a_session_on_record(running: RunningSystem) -> None:
    for butler in running.roster:
        answer = await call(running, butler, "trigger", {"prompt": "Say something"})
        assert answer["status"] == "ok"
        assert answer["text"]
        listed = await call(running, butler, "sessions_list", {"limit": 1})
        (session,) = listed["sessions"]
        assert (session["trigger_source"], session["status"]) == ("trigger:operator", "completed")
        whole = (await call(running, butler, "sessions_get", {"session_id": session["id"]}))["session"]
        assert whole["result"] == answer["text"]
        assert whole["ended_at"] >= whole["started_at"]
        before = await call(running, butler, "sessions_list", {"before": listed["next_cursor"]})
        assert session["id"] not in [older["id"] for older in before["sessions"]]
    missing = await call(running, "general", "sessions_get", {"session_id": str(uuid4())})
    assert missing["error"]["fields"] == [{"field": "session_id", "error": "no such session"}]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("notify", {"message": "I am somebody else"}),
        ("send_message", {"message": "I am somebody else"}),
        ("trigger", {"prompt": "do my work"}),
        ("state_set", {"key": "k", "value": 1}),
        ("schedule_create", {"name": "n", "cron": "* * * * *", "prompt": "p"}),
    ],
)
async def test_no_butler_acts_in_anothers_name(running: RunningSystem, tool: str, arguments: dict[str, Any]) -> None:
    refused = await call(running, "general", tool, arguments, caller="finance")
    assert refused["error"]["class"] == "validation_error"
    assert "finance" in refused["error"]["message"]
    assert await running.answers() == []
    allowed = await call(running, "general", tool, arguments, caller="general")
    assert "error" not in allowed
    if tool == "send_message":  # a worker sends it: the next test begins without it
        await running.until(running.answers)


async def test_trace_tells_what_a_butler_did_for_a_request(running: RunningSystem) -> None:
    request_id = (await running.ingest("I weigh 80 kg"))["request_id"]
    await running.finished(request_id)
    health = await call(running, "health", "trace", {"request_id": request_id})
    assert [route["lifecycle_state"] for route in health["route_inbox"]] == ["processed"]
    assert [entry["kind"] for entry in health["entries"]] == ["note"]
    messenger = await call(running, "messenger", "trace", {"request_id": request_id})
    assert [delivery["status"] for delivery in messenger["deliveries"]] == ["delivered"]
    assert (await call(running, "travel", "trace", {"request_id": request_id}))["route_inbox"] == []
    wrong = await call(running, "health", "trace", {"request_id": str(uuid4())})
    assert wrong["error"]["class"] == "validation_error"


async def test_notify_speaks_in_the_butlers_own_name(running: RunningSystem) -> None:
    answer = await call(running, "travel", "notify", {"message": "gate 7", "idempotency_key": "gate"})
    again = await call(running, "travel", "notify", {"message": "gate 7", "idempotency_key": "gate"})
    assert answer["delivery"]["delivery_id"] == again["delivery"]["delivery_id"]
    await call(running, "finance", "notify", {"message": "paid", "recipient": "71"}, caller="finance")
    await call(running, "health", "notify", {"message": "pills", "channel": "email", "subject": "Pills"})
    assert await running.answers() == ["[travel] gate 7"]
    assert await running.answers(71) == ["[finance] paid"]
    assert [mail["subject"] for mail in await mails(running)] == ["[health] Pills"]
    logged = await running.database.fetch("select source_butler, status from switchboard.notifications order by id")
    assert [tuple(row.values()) for row in logged[-3:]] == [("travel", "sent"), ("finance", "sent"), ("health", "sent")]


async def test_send_message_reaches_people_by_their_preferred_channel(running: RunningSystem) -> None:
    anna, ben = uuid4(), uuid4()
    for contact, channel, address in ((anna, "email", "owner@butlers.example"), (ben, "telegram", "72")):
        await running.database.execute(
            "insert into shared.contacts (id, name, preferred_channel, created_at, updated_at)"
            " values ($1, 'x', $2, now(), now())",
            contact,
            channel,
        )
        await running.database.execute(
            "insert into shared.contact_info (id, contact_id, type, value, is_primary, created_at)"
            " values ($1, $2, $3, $4, true, now()) on conflict (type, value) do update set contact_id = $2",
            uuid4(),
            contact,
            channel,
            address,
        )
    arguments = {"message": "dinner at 8", "recipient_ids": [str(anna), str(ben)], "idempotency_key": "d"}
    for _ in range(2):
        answer = await call(running, "relationship", "send_message", arguments)
        assert [sent["channel"] for sent in answer["queued"]] == ["email", "telegram"]
        assert answer["blocked"] == []
    assert await running.until(lambda: running.answers(72)) == ["[relationship] dinner at 8"]
    assert [mail["text"] for mail in await running.until(lambda: mails(running))] == ["dinner at 8"]
    refused = await call(running, "relationship", "send_message", {"message": "x", "recipient_ids": [str(uuid4())]})
    assert refused["error"]["fields"][0]["field"] == "recipient_ids"
    await call(running, "relationship", "send_message", {"message": "to you"})
    assert await running.until(running.answers) == ["[relationship] to you"]
    assert len(await mails(running)) == 1


async def test_a_reminder_fires_once_when_it_is_due(running: RunningSystem) -> None:
    due = running.clock.now() + timedelta(seconds=0.5)
    made = await call(running, "health", "remind", {"message": "drink water", "due_at": due.isoformat()})
    await running.until(running.answers)
    assert running.clock.now() >= due
    await running.until(lambda: _result(running, "health", made["name"]))
    await call(running, "health", "tick", {})
    assert await running.answers() == ["[health] drink water"]
    (schedule,) = (await call(running, "health", "schedule_list", {}))["schedules"]
    assert (schedule["name"], schedule["enabled"]) == (made["name"], False)
    past = {"message": "too late", "due_at": (running.clock.now() - timedelta(seconds=1)).isoformat()}
    refused = await call(running, "health", "remind", past)
    assert refused["error"]["fields"] == [{"field": "due_at", "error": "lies in the past"}]


async def test_a_reminder_that_could_not_be_sent_is_not_recorded_as_done(running: RunningSystem) -> None:
    await fault(running, "error_5xx", times=3)
    due = (running.clock.now() + timedelta(hours=1)).isoformat()
    made = await call(running, "finance", "remind", {"message": "pay", "due_at": due})
    await _due_now(running, "finance", made["name"])
    await running.until(lambda: _result(running, "finance", made["name"]))
    result = await _result(running, "finance", made["name"])
    assert result["status"] == "error"
    assert result["error"]["class"] == "target_unavailable"
    assert await running.answers() == []


async def test_roles_decide_who_may_call_what(running: RunningSystem) -> None:
    client = running.issue_token("a-web-page", Role.CLIENT)
    connector = running.issue_token("a-connector", Role.CONNECTOR)
    for token in (client, connector):
        assert (await call(running, "general", "status", {}, token=token))["status"] == "ok"
        for tool in sorted(CORE | SPEAKING):
            if tool in ("status", "route.execute"):
                continue
            refused = await call(running, "general", tool, {}, token=token)
            assert refused["error"]["class"] == "validation_error", tool
            assert [field["field"] for field in refused["error"]["fields"]] == ["authorization"], tool
    nobody = await call(running, "general", "state_set", {"key": "a", "value": 1}, caller=None)
    assert nobody["error"]["fields"][0]["field"] == "authorization"
    assert (await call(running, "general", "state_get", {"key": "a"}))["found"] is False
    assert await running.answers() == []


async def test_bad_arguments_are_named_all_at_once_and_not_echoed(running: RunningSystem) -> None:
    bad = {"message": " ", "channel": "zebrafish", "recipient": 5, "contact_id": "zebrafish", "zebra": "zebrafish"}
    answer = await call(running, "general", "notify", bad)
    fields = {field["field"] for field in answer["error"]["fields"]}
    assert fields == {"message", "channel", "recipient", "contact_id", "zebra"}
    assert answer["error"]["retryable"] is False
    assert "zebrafish" not in str(answer)
    missing = await call(running, "general", "state_set", {})
    assert {field["field"] for field in missing["error"]["fields"]} == {"key", "value"}
    # A number is not taken for a text, nor a text for a number.
    for tool, arguments in (("state_get", {"key": 5}), ("sessions_list", {"limit": "5"}), ("tick", {"x": 1})):
        assert (await call(running, "general", tool, arguments))["error"]["class"] == "validation_error", tool


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("state_set", {"key": "k", "value": "a\x00b"}),
        ("state_set", {"key": "k", "value": {"a\x00b": [1]}}),
        ("state_set", {"key": "k\x00", "value": 1}),
        ("state_list", {"prefix": "\x00"}),
        ("state_list", {"after": "\x00"}),
        ("schedule_create", {"name": "n", "cron": "* * * * *", "job_name": "remind", "job_args": {"x": "\x00"}}),
        ("notify", {"message": "a\x00b"}),
    ],
)
async def test_what_the_database_cannot_hold_is_a_wrong_argument_and_no_failure(
    running: RunningSystem, tool: str, arguments: dict[str, Any]
) -> None:
    answer = await call(running, "general", tool, arguments)
    assert answer["error"]["class"] == "validation_error", answer


async def test_an_unknown_tool_is_refused_without_echoing_its_name(running: RunningSystem) -> None:
    answer = await call(running, "general", "no_such_zebrafish", {})
    assert (answer["error"]["class"], answer["error"]["retryable"]) == ("validation_error", False)
    assert "zebrafish" not in str(answer)


async def test_llm_hosts_call_the_same_tools_by_underscored_names(running: RunningSystem) -> None:
    async with running.mcp("switchboard", caller="travel", path="/mcp/llm") as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert "notify_dispatch" in listed
        assert not any("." in name for name in listed)
    answer = await call(
        running,
        "switchboard",
        "notify_dispatch",
        {
            "schema_version": "notify.v1",
            "origin_butler": "travel",
            "delivery": {"intent": "send", "channel": "telegram", "message": "boarding"},
        },
        caller="travel",
        path="/mcp/llm",
    )
    assert answer["status"] == "ok"
    assert await running.answers() == ["[travel] boarding"]
    route = await call(running, "general", "route_execute", {}, caller="switchboard", path="/mcp/llm")
    assert route["error"]["class"] == "validation_error"


async def _due_now(running: RunningSystem, butler: str, name: str) -> None:
    query = f"update {butler}.scheduled_tasks set next_run_at = now() - interval '1 second' where name = $1"
    await running.database.execute(query, name)


async def _result(running: RunningSystem, butler: str, name: str) -> Any:
    return await running.database.fetchval(
        f"select last_result from {butler}.scheduled_tasks where name = $1",
        name,
    )
