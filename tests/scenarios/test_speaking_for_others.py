"""For whom a token may speak at the ingest door: a client's question in another person's name is refused, and nothing
of that person's leaves (issue 12, item 7).
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import subprocess
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import pytest_asyncio

from butlers.butler.identity import Grant
from butlers.operations.operation import Role
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.switchboard_door import all_finished, call, counts, post
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOT, OTHER_BOT = "butlers_sim_bot", "another_bot"
VICTIM, ATTACKER = 5_551, 6_666  # chats, and the people in them
SECRET, QUESTION = "My locker code is 4711", "What is my locker code?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    """The victim has told a butler a secret through the Telegram connector."""
    async with running_system(tmp_path_factory.mktemp("speaking"), postgres_server) as system:
        await system.says(SECRET, chat=VICTIM)
        await system.until(lambda: system.answers(VICTIM))
        await all_finished(system)
        yield system


def spoofed(running: RunningSystem, *, thread: Any = ATTACKER, **changes: Any) -> dict[str, Any]:
    """The question in the victim's name, to be answered into the attacker's chat."""
    source = {"channel": "telegram", "provider": "telegram", "endpoint_identity": BOT}
    return (
        running.envelope(QUESTION, external_thread_id=str(thread))
        | {"source": source, "sender": {"identity": str(VICTIM)}}
        | changes
    )


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def wrong_fields(error: dict[str, Any]) -> list[str]:
    return [wrong["field"] for wrong in error["fields"]]


async def everything_said(running: RunningSystem) -> dict[int, list[str]]:
    return {chat: await running.answers(chat) for chat in (VICTIM, ATTACKER, 1000)}


ITSELF = ["source.channel", "source.endpoint_identity", "sender.identity"]


async def test_a_client_that_speaks_in_a_victims_name_is_refused_over_http(running: RunningSystem) -> None:
    token, before = running.issue_token("mallory", Role.CLIENT), await counts(running)
    said = await everything_said(running)
    response = await post(running, spoofed(running), **bearer(token))

    error = response.json()["error"]
    assert (response.status_code, error["class"], wrong_fields(error)) == (403, "validation_error", ITSELF)
    assert "'client:mallory'" in error["message"]
    assert await counts(running) == before
    await all_finished(running)
    assert await everything_said(running) == said


async def test_the_same_over_mcp(running: RunningSystem) -> None:
    token, before = running.issue_token("mallory", Role.CLIENT), await counts(running)
    said = await everything_said(running)
    async with running.mcp("switchboard", caller=None, token=token) as client:
        one = await client.call_tool("ingest", spoofed(running))
        many = await call(client, "ingest.batch", {"messages": [spoofed(running), spoofed(running)]})

    assert one.is_error
    assert isinstance(one.structured_content, dict)
    assert wrong_fields(one.structured_content["error"]) == ITSELF
    assert [wrong_fields(result["error"]) for result in many["results"]] == [ITSELF, ITSELF]
    assert await counts(running) == before
    await all_finished(running)
    assert await everything_said(running) == said


async def test_a_client_asks_in_its_own_name_and_reads_nobody_elses_notes(running: RunningSystem) -> None:
    token = running.issue_token("mallory", Role.CLIENT)
    asked = await post(running, running.own_envelope(QUESTION, "client:mallory"), **bearer(token))
    assert asked.status_code == 202, asked.text
    trace = await running.finished(asked.json()["request_id"])

    assert trace["ingress"]["submitted_by"] == "mallory"
    assert "nothing on that" in str(trace["reply"])
    assert "4711" not in str(trace)
    assert not any("4711" in line for line in await running.answers(ATTACKER))


async def test_the_owner_of_a_note_is_a_sender_at_an_endpoint_of_a_channel(running: RunningSystem) -> None:
    """An operator may speak for anybody; even so the same number elsewhere is another person."""

    async def answered(document: dict[str, Any]) -> str:
        reply = await post(running, document)
        assert reply.status_code == 202, reply.text
        return str((await running.finished(reply.json()["request_id"]))["reply"])

    source = {"channel": "telegram", "provider": "telegram", "endpoint_identity": OTHER_BOT}
    over_api = running.envelope(QUESTION) | {"sender": {"identity": str(VICTIM)}}
    assert "nothing on that" in await answered(over_api)
    assert "nothing on that" in await answered(spoofed(running, thread=VICTIM, source=source))
    assert "4711" in await answered(spoofed(running, thread=VICTIM))
    await running.says(QUESTION, chat=VICTIM)

    async def told() -> bool:
        return sum("4711" in line for line in await running.answers(VICTIM)) >= 3

    await running.until(told)
    assert not any("4711" in line for line in await running.answers(1000))


async def test_a_granted_client_speaks_for_its_senders_and_into_their_own_chats_only(running: RunningSystem) -> None:
    grant = Grant(channel="telegram", endpoint=BOT, senders=("7001",))
    headers = bearer(running.issue_token("bridge", Role.CLIENT, grant))
    before = await counts(running)
    mine = {"sender": {"identity": "7001"}}
    elsewhere = {"channel": "telegram", "provider": "telegram", "endpoint_identity": OTHER_BOT}
    refusals = [
        (spoofed(running, thread=VICTIM), ["sender.identity"]),
        (spoofed(running, **mine), ["event.external_thread_id"]),
        (spoofed(running, thread=7001, source=elsewhere, **mine), ["source.endpoint_identity"]),
        (spoofed(running, source={"channel": "email", "provider": "imap", "endpoint_identity": BOT}), ITSELF),
    ]
    for document, fields in refusals:
        response = await post(running, document, **headers)
        assert (response.status_code, wrong_fields(response.json()["error"])) == (403, fields)
    assert await counts(running) == before
    accepted = await post(running, spoofed(running, thread=7001, **mine), **headers)
    assert accepted.status_code == 202
    assert "nothing on that" in str((await running.finished(accepted.json()["request_id"]))["reply"])


async def test_a_connector_speaks_for_its_endpoint_and_any_chat_there(running: RunningSystem) -> None:
    headers = bearer(
        running.issue_token("connector.far", Role.CONNECTOR, Grant(channel="telegram", endpoint=OTHER_BOT))
    )
    there = {"source": {"channel": "telegram", "provider": "telegram", "endpoint_identity": OTHER_BOT}}
    refused = await post(running, spoofed(running), **headers)
    accepted = await post(running, spoofed(running, **there), **headers)
    assert (refused.status_code, wrong_fields(refused.json()["error"])) == (403, ["source.endpoint_identity"])
    assert accepted.status_code == 202
    await running.finished(accepted.json()["request_id"])

    bare = bearer(running.issue_token("connector.bare", Role.CONNECTOR))
    assert (await post(running, spoofed(running, **there), **bare)).status_code == 403


@pytest.mark.parametrize(
    ("butler", "channel", "provider", "status"),
    [
        ("health", "telegram", "telegram", 403),
        ("health", "email", "imap", 403),
        ("messenger", "telegram", "telegram", 403),
        ("messenger", "email", "imap", 202),
    ],
)
async def test_of_the_butlers_only_messenger_brings_mail_in(
    running: RunningSystem, butler: str, channel: str, provider: str, status: int
) -> None:
    source = {"channel": channel, "provider": provider, "endpoint_identity": "somewhere"}
    response = await post(running, spoofed(running, source=source), **running.bearer(butler))
    assert response.status_code == status, response.text
    await all_finished(running)


async def test_one_clients_key_says_nothing_about_anothers(running: RunningSystem) -> None:
    tokens = {name: running.issue_token(name, Role.CLIENT) for name in ("phone", "kiosk")}

    async def hand_in(name: str) -> dict[str, Any]:
        document = running.own_envelope("order more paper", f"client:{name}") | {"control": {"idempotency_key": "k-1"}}
        response = await post(running, document, **bearer(tokens[name]))
        assert response.status_code == 202, response.text
        reply: dict[str, Any] = response.json()
        return reply

    first, others, again = await hand_in("phone"), await hand_in("kiosk"), await hand_in("phone")
    assert not others["duplicate"]
    assert others["request_id"] != first["request_id"]
    assert again == first | {"duplicate": True}
    await all_finished(running)


async def test_a_connector_reports_for_what_its_token_grants(running: RunningSystem) -> None:
    running.issue_token("connector.mail", Role.CONNECTOR, Grant(channel="email", endpoint="a@example.org"))

    async def beat(kind: str, endpoint: str) -> dict[str, Any]:
        named = {"connector_type": kind, "endpoint_identity": endpoint, "instance_id": str(uuid4())}
        counters = ("messages_ingested", "messages_failed", "source_api_calls", "checkpoint_saves", "dedupe_accepted")
        envelope = {
            "schema_version": "connector.heartbeat.v1",
            "connector": named,
            "status": {"state": "healthy", "uptime_s": 1.0},
            "counters": dict.fromkeys(counters, 0),
            "sent_at": running.clock.now().isoformat(),
        }
        async with running.mcp("switchboard", caller="connector.mail") as client:
            return await call(client, "connector.heartbeat", envelope)

    assert (await beat("imap", "a@example.org"))["status"] == "accepted"
    for kind, endpoint in (("imap", "b@example.org"), ("telegram", BOT)):
        refused = await beat(kind, endpoint)
        assert wrong_fields(refused["error"]) == ["authorization"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
async def test_another_account_of_this_machine_needs_a_token(running: RunningSystem) -> None:
    before = await counts(running)
    address, question = running.url(path="/api/ingest"), spoofed(running)
    refused = await post_as_nobody(address, question)
    assert refused["error"]["fields"] == [
        {"field": "authorization", "error": "a bearer token is required from other accounts of this machine"}
    ]
    for path in ("/api/requests", "/api/status"):
        assert (await post_as_nobody(running.url(path=path), None))["error"]["class"] == "validation_error"
    # Neither a header nor an end that is closed already makes anybody else of it.
    own_end = running.url().removeprefix("http://")
    for origin in (own_end, "127.0.0.1:99999", "127.0.0.1"):
        refused = await post_as_nobody(address, question, **{"X-Forwarded-For": origin})
        assert wrong_fields(refused["error"]) == ["authorization"]
    assert await close_as_nobody(address, question, times=20) == 20
    assert await counts(running) == before

    # The simulated world is not moved by it, either.
    control = f"http://127.0.0.1:{running.telegram.port}/control"
    told = await post_as_nobody(f"{control}/messages", {"chat_id": VICTIM, "text": QUESTION})
    assert wrong_fields(told["error"]) == ["account"]

    # With a token the other account is that client; without one, our own account is the operator `local`.
    token, own = running.issue_token("neighbour", Role.CLIENT), running.own_envelope("hello", "client:neighbour")
    accepted = await post_as_nobody(address, own, **bearer(token))
    assert accepted["status"] == "accepted", accepted
    assert (await post(running, running.envelope("hello from here"))).status_code == 202
    await all_finished(running)


async def post_as_nobody(address: str, document: dict[str, Any] | None, **headers: str) -> Any:
    """The answer to a caller in the account `nobody`."""
    nobody = pwd.getpwnam("nobody")
    command = ["curl", "--silent", "--max-time", "30", address]
    for name, value in headers.items():
        command += ["--header", f"{name}: {value}"]
    if document is not None:
        command += ["--json", json.dumps(document)]
    as_nobody: dict[str, Any] = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}
    try:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, **as_nobody)
    except FileNotFoundError:
        pytest.skip("curl is not installed")
    answer, _ = await process.communicate()
    return json.loads(answer)


_SEND_AND_CLOSE = """
import socket, sys
host, port, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
request = sys.stdin.buffer.read()
for _ in range(times):
    connection = socket.create_connection((host, port))
    connection.sendall(request)
    connection.close()
"""


async def close_as_nobody(address: str, document: dict[str, Any], *, times: int) -> int:
    """As `nobody`: send so many requests and close each at once. Returns how many, when the server has read them."""
    place, body = urlsplit(address), json.dumps(document).encode()
    head = f"POST {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    command = ["/usr/bin/python3", "-I", "-c", _SEND_AND_CLOSE, str(place.hostname), str(place.port), str(times)]
    nobody = pwd.getpwnam("nobody")
    options: dict[str, Any] = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}
    # It blocks this process, too, so that every connection is closed before the server takes it.
    done = subprocess.run(command, input=request, check=True, **options)
    for _ in range(3):
        await asyncio.sleep(0.1)
    return times if done.returncode == 0 else 0
