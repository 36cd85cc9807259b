"""`status`, `ingest`, `requests` and `trace` against a running system, for people and for machines."""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest

from butlers.daemon.demo.instance import Instance
from butlers.daemon.demo.lines import processes_of
from tests.fuzz.scripted import scripted_server
from tests.integration.processes.command import (
    answer,
    answer_here,
    butlers,
    butlers_here,
    finished,
    pretend_running,
    telegram_event,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROSTER = {"switchboard", "general", "relationship", "health", "messenger", "finance", "travel"}


async def test_every_door_is_healthy_and_has_metrics(running: Instance):
    async with httpx2.AsyncClient(trust_env=False) as http:
        for name in ROSTER:
            health = await http.get(f"{running.url(name)}/healthz")
            assert (health.status_code, health.json()["butler"]) == (200, name)
            metrics = await http.get(f"{running.url(name)}/metrics")
            assert metrics.headers["content-type"].startswith("text/plain")
            assert "# TYPE" in metrics.text


async def test_the_simulated_mail_is_changed_at_either_control_port(running: Instance):
    letter = {"from": "friend@elsewhere.example", "to": "owner@butlers.example", "subject": "hi", "text": "hello"}
    await running.post("telegram_simulator", "/control/mail/messages", letter)
    mailbox = await running.get("mail_control", "/control/mail/mailboxes/owner@butlers.example")
    assert "hi" in str(mailbox)


async def test_run_file_tells_where_everything_is(running: Instance):
    description = json.loads((running.data_dir / "run.json").read_text())
    assert description["pid"] == running.pid
    assert description["doors"] == {name: running.url(name) for name in (*ROSTER, "courier")}
    assert description["simulators"]["telegram"] == running.url("telegram_simulator")
    assert description["data_dir"] == str(running.data_dir)


async def test_the_processes_of_a_system_are_found(running: Instance):
    """Otherwise "no process is left" would prove nothing: the system, its simulators and its database."""
    found = processes_of(running.data_dir)
    assert running.pid in found
    assert int((running.data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[0]) in found
    assert len(found) > 3


async def test_data_directory_is_private(running: Instance):
    for folder in ("logs", "messenger", "simulators"):
        assert (running.data_dir / folder).stat().st_mode & 0o077 == 0


async def test_status(running: Instance):
    document = answer("status", "--data-dir", running.data_dir)
    doors = document["doors"]
    assert {name: door["status"] for name, door in doors.items()} == dict.fromkeys((*ROSTER, "courier"), "ok")
    for name in ROSTER:
        assert {"database", "disk"} <= {part["part"] for part in doors[name]["parts"]}
    readable = butlers("status", "--data-dir", running.data_dir)
    assert readable.returncode == 0
    assert all(name in readable.stdout for name in ROSTER)
    assert "requests (open, and ended within a day): " in readable.stdout


async def test_status_of_a_system_with_a_dead_door_is_a_failure(running: Instance, tmp_path):
    pretend_running(tmp_path, {"switchboard": running.url("switchboard"), "general": "http://127.0.0.1:9"})
    completed = butlers("status", "--data-dir", tmp_path, "--json")
    assert completed.returncode == 1
    doors = json.loads(completed.stdout)["doors"]
    assert (doors["switchboard"]["status"], doors["general"]["status"]) == ("ok", "unreachable")


async def test_status_says_what_is_wrong_and_what_to_do(tmp_path):
    wrong = {"part": "credentials", "name": "imap", "state": "degraded"}
    wrong |= {"sentence": "The server refuses the password.", "remedy": "Set BUTLER_EMAIL_PASSWORD."}
    state = {"status": "degraded", "ready": True, "parts": [wrong, {"part": "disk", "state": "ok"}]}
    answers = {"/readyz": state, "/api/status": {"requests": {}}}
    async with scripted_server(lambda path: json.dumps(answers[path]).encode()) as url:
        pretend_running(tmp_path, {"switchboard": url, "messenger": url})
        completed = await asyncio.to_thread(butlers, "status", "--data-dir", tmp_path)
    assert completed.returncode == 1
    expected = "credentials imap degraded: The server refuses the password. Set BUTLER_EMAIL_PASSWORD."
    assert f"switchboard, messenger: {expected}" in completed.stdout  # what several doors say is said once
    assert "disk" not in completed.stdout


async def test_ingest_and_trace_as_people_see_them(running: Instance):
    completed = butlers("ingest", "I paid the water bill, 40 euros", "--data-dir", running.data_dir)
    assert completed.returncode == 0
    [accepted, follow] = completed.stdout.splitlines()
    request_id = accepted.removeprefix("accepted as ")
    assert follow == f"follow it with: butlers trace --data-dir {running.data_dir} {request_id}"
    await finished(running)
    trace = butlers("trace", request_id, "--data-dir", running.data_dir)
    assert trace.returncode == 0
    assert trace.stdout.startswith(f"request {request_id}: parsed\n")
    assert "api message from cli, handed in by operator" in trace.stdout
    assert "route    to finance" in trace.stdout
    assert "butler   finance" in trace.stdout


async def test_ingest_and_trace_as_machines_see_them(running: Instance):
    reply = answer("ingest", "hello there", "--from", "ada", "--to", "travel", "--data-dir", running.data_dir)
    assert reply.keys() >= {"request_id", "status", "duplicate"}
    assert (reply["status"], reply["duplicate"]) == ("accepted", False)
    await finished(running)
    trace = answer("trace", reply["request_id"], "--data-dir", running.data_dir)
    assert trace["request_id"] == reply["request_id"]
    assert trace["ingress"]["request_context"]["source_sender_identity"] == "ada"
    assert [segment["butler"] for segment in trace["routing"]["decision"]["segments"]] == ["travel"]


@pytest.mark.parametrize("sender", ["pigeon:4711", "telegram:", "sms:+15550100"])
async def test_a_sender_on_a_channel_that_brings_no_messages_is_refused(running: Instance, sender: str):
    before = await running.counts()
    refused = butlers("ingest", "hello", "--from", sender, "--data-dir", running.data_dir, "--json")
    assert refused.returncode == 2
    [problem] = json.loads(refused.stdout)["error"]["fields"]
    assert problem["field"] == "--from"
    assert "NAME or CHANNEL:NAME" in problem["error"]
    assert await running.counts() == before


async def test_deliveries_are_listed_without_another_word(running: Instance):
    where = ("--data-dir", running.data_dir)
    assert answer_here("deliveries", *where) == answer_here("deliveries", "list", *where)


async def test_the_same_key_twice_is_one_message(running: Instance):
    arguments = ("ingest", "only once", "--key", "k-1", "--data-dir", running.data_dir)
    first, second = answer(*arguments), answer_here(*arguments)
    assert (first["duplicate"], second["duplicate"]) == (False, True)
    assert first["request_id"] == second["request_id"]
    assert butlers_here(*arguments).stdout.startswith(f"already known as {first['request_id']}")


async def test_an_envelope_from_standard_input(running: Instance):
    envelope = json.dumps(telegram_event(501, 6001, "my flight to Oslo leaves at noon")).encode()
    reply = answer("ingest", "-", "--data-dir", running.data_dir, stdin=envelope)
    [trace] = await finished(running, reply["request_id"])
    assert trace["lifecycle_state"] == "parsed"
    assert await running.bot_messages(6001) == ["[travel] Noted: my flight to Oslo leaves at noon"]
    assert answer_here("ingest", "-", "--data-dir", running.data_dir, stdin=envelope)["duplicate"] is True


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (["ingest", ""], b"", "payload.normalized_text"),
        (["ingest", b"caf\xe9"], b"", "UTF-8"),
        (["ingest", "x" * 10_000], b"", "8192 bytes"),
        (["ingest", "-"], b"", "JSON"),
        (["ingest", "-"], b'{"schema_version": "ingest.v1", "surprise": 1}', "surprise"),
        (["ingest", "-", "--key", "k"], b"{}", "--key"),
        (["trace", "not-an-id"], b"", "not-an-id"),
        (["trace", "00000000-0000-7000-8000-000000000000"], b"", "no such request"),
        (["requests", "--before", "yesterday"], b"", "before"),
    ],
)
async def test_wrong_input_is_refused_with_the_reason(running: Instance, arguments, stdin, says):
    before = await running.counts()
    completed = butlers_here(*arguments, "--data-dir", running.data_dir, stdin=stdin)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr.startswith("butlers: ")
    assert says in completed.stderr
    await finished(running)
    assert sum((await running.counts()).values()) == sum(before.values())


async def test_requests_as_a_list_with_pages(running: Instance):
    for number in range(4):
        await running.ingest(telegram_event(510 + number, 6002, f"page {number}"))
    first = answer("requests", "--limit", 2, "--data-dir", running.data_dir)
    rest = answer_here("requests", "--limit", 2, "--before", first["next_cursor"], "--data-dir", running.data_dir)
    ids = [row["request_id"] for row in (*first["requests"], *rest["requests"])]
    assert len(ids) == 4
    assert ids == sorted(ids, reverse=True)
    await finished(running)
    for state, found in (("parsed", {"parsed"}), ("progress", set())):
        listed = butlers_here("requests", "--state", state, "--json", "--data-dir", running.data_dir)
        assert {row["lifecycle_state"] for row in json.loads(listed.stdout)["requests"]} == found
    readable = butlers_here("requests", "--limit", 2, "--data-dir", running.data_dir)
    assert readable.returncode == 0
    assert f"more: butlers requests --data-dir {running.data_dir} --limit 2 --before" in readable.stdout


async def test_a_sender_that_looks_like_mark_up_does_not_break_the_list(running: Instance):
    butlers_here("ingest", "hello", "--from", "[/red]", "--data-dir", running.data_dir)
    readable = butlers_here("requests", "--limit", 1, "--data-dir", running.data_dir, environment={"COLUMNS": "200"})
    assert readable.returncode == 0
    assert "api:[/red]" in readable.stdout


async def test_senders_are_listed_let_in_and_removed(running: Instance):
    where = ("--data-dir", running.data_dir)
    assert answer("senders", "refused", *where) == {"senders": [], "next_cursor": None}
    assert butlers_here("senders", *where).stdout == "nobody was refused\n"
    assert answer_here("senders", "pairings", *where) == {"pairings": [], "next_cursor": None}
    assert answer_here("senders", "owner-code", *where)["code"] is None, "the simulated owner is known"
    allowed = answer_here("senders", "allow", "telegram", "70707", "--name", "Bo", *where)
    assert (allowed["channel"], allowed["identity"], allowed["name"]) == ("telegram", "70707", "Bo")
    assert butlers_here("senders", "remove", "telegram", "70707", *where).stdout == (
        "telegram 70707 is served no longer\n"
    )
    for command, field in (
        (("remove", "telegram", "70707"), "identity"),
        (("remove", "telegram", "1000"), "identity"),
        (("allow", "email", "nobody"), "identity"),
        (("approve", "2222-2222"), "code"),
    ):
        refused = butlers_here("senders", *command, "--json", *where)
        assert refused.returncode == 2
        assert [wrong["field"] for wrong in json.loads(refused.stdout)["error"]["fields"]] == [field]
