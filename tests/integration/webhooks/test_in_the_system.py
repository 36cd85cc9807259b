"""Webhooks through the doors of a running system: created by HTTP and by command, told of what happens."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from butlers.operations.operation import Role
from tests.integration.processes.command import answer_here, butlers_here, pretend_running
from tests.integration.webhooks.receiver import Received, Receiver, receiver, status
from tests.system import OWNER_CHAT_ID, RunningSystem, running_system

QUICK: dict[str, Any] = {"webhook_private_networks": "allow", "webhook_retry_s": "0.05,0.05,0.05"}


async def call(
    running: RunningSystem, path: str = "", body: Any = None, *, method: str = "POST", expect: int = 200, **query: Any
) -> Any:
    url = running.url(path=f"/api/webhooks{path}")
    response = await running.http.request(method, url, json=body, params=query, headers=running.bearer())
    assert response.status_code == expect, response.text
    return response.json()


async def subscribe(running: RunningSystem, to: Receiver, *event_types: str) -> tuple[str, str]:
    """The id and the secret of a new endpoint."""
    given = {"url": to.url, "event_types": list(event_types) or ["*"]}
    created = await call(running, body=given, expect=201)
    return created["endpoint"]["id"], created["secret"]


async def rows(running: RunningSystem, endpoint_id: str) -> list[dict[str, Any]]:
    sql = "SELECT * FROM webhooks.deliveries WHERE endpoint_id = $1 ORDER BY id"
    return [dict(row) for row in await running.database.fetch(sql, UUID(endpoint_id))]


async def states(running: RunningSystem, endpoint_id: str) -> dict[str, str]:
    return {row["event_type"]: row["state"] for row in await rows(running, endpoint_id)}


def all_signed(received: list[Received], secret: str) -> bool:
    return all(one.is_signed_with(secret) for one in received)


@pytest.mark.parametrize("courier", ["on", "off"])
async def test_a_telegram_message_and_its_answer_are_told(tmp_path, postgres_server, courier):
    async with receiver() as hooks, running_system(tmp_path, postgres_server, courier=courier, **QUICK) as running:
        endpoint_id, secret = await subscribe(running, hooks)
        await running.says("I paid the electricity bill")
        parsed = await hooks.of_type("request.parsed")
        delivered = await hooks.of_type("delivery.delivered")

        assert all_signed(hooks.received, secret)
        assert not parsed.is_signed_with("whsec_" + "A" * 43 + "=")
        assert parsed.headers["content-type"] == "application/json"
        assert parsed.event.keys() == {"type", "timestamp", "data"}
        assert parsed.event["data"]["source_channel"] == "telegram"
        assert delivered.event["data"]["channel"] == "telegram"
        assert delivered.event["data"]["request_id"] == parsed.event["data"]["request_id"]
        assert b"electricity" not in b"".join(one.body for one in hooks.received)  # ids and states only
        request_id = UUID(parsed.event["data"]["request_id"])
        stored = await running.database.fetchval(
            "SELECT lifecycle_state FROM switchboard.message_inbox WHERE request_id = $1", request_id
        )
        assert stored == "parsed"
        delivery_id = UUID(delivered.event["data"]["delivery_id"])
        stored = await running.database.fetchval(
            "SELECT status FROM messenger.delivery_requests WHERE id = $1", delivery_id
        )
        assert stored == "delivered"
        assert len(await running.answers(OWNER_CHAT_ID)) == 1

        async def all_settled() -> bool:
            found = await rows(running, endpoint_id)
            return {row["state"] for row in found} == {"delivered"} and len(found) == len(hooks.received)

        await running.until(all_settled)
        assert {f"msg_{row['id'].hex}" for row in await rows(running, endpoint_id)} == {
            one.id for one in hooks.received
        }


async def test_an_endpoint_is_told_what_it_chose_and_nothing_else(tmp_path, postgres_server):
    async with (
        receiver() as ends,
        receiver() as all_events,
        running_system(tmp_path, postgres_server, **QUICK) as running,
    ):
        await subscribe(running, ends, "delivery.delivered")
        await subscribe(running, all_events)
        await running.says("I paid the electricity bill")
        await all_events.of_type("delivery.delivered")
        await ends.of_type("delivery.delivered")
        await all_events.of_type("request.parsed")
        assert {one.type for one in ends.received} == {"delivery.delivered"}


async def test_a_receiver_that_is_down_is_tried_again_set_aside_and_sent_it_by_replay(tmp_path, postgres_server):
    async with receiver() as hooks, running_system(tmp_path, postgres_server, **QUICK) as running:
        hooks.usual = status(500)
        endpoint_id, secret = await subscribe(running, hooks, "request.parsed")
        await running.ingest("I paid the electricity bill")
        tries = await hooks.count(4)
        assert len({one.id for one in tries}) == 1  # the same webhook-id in every attempt
        assert len({one.body for one in tries}) == 1

        async def set_aside() -> bool:
            return await states(running, endpoint_id) == {"request.parsed": "dead_lettered"}

        await running.until(set_aside)
        [listed] = (await call(running, f"/{endpoint_id}/deliveries", method="GET", state="dead_lettered"))[
            "deliveries"
        ]
        assert (listed["attempts"], listed["last_status"]) == (4, 500)
        assert listed["last_error"] == "the receiver answered HTTP 500"

        hooks.usual = status(204)
        assert (await call(running, f"/{endpoint_id}/replay", {"delivery_id": listed["id"]}))["replayed"] == 1
        again = (await hooks.count(5))[-1]
        assert (again.id, again.body) == (tries[0].id, tries[0].body)
        assert again.is_signed_with(secret)

        async def delivered() -> bool:
            return await states(running, endpoint_id) == {"request.parsed": "delivered"}

        await running.until(delivered)
        text = (await running.http.get(running.url(path="/metrics"))).text
        assert "butlers_webhooks_attempts_total{" in text
        assert 'outcome="retried"' in text
        assert "butlers_webhooks_dead_lettered_total" in text


async def test_replay_since_takes_all_that_was_set_aside(tmp_path, postgres_server):
    async with receiver() as hooks, running_system(tmp_path, postgres_server, **QUICK) as running:
        hooks.usual = status(500)
        endpoint_id, _ = await subscribe(running, hooks, "request.parsed")
        began = running.clock.now().isoformat()
        await asyncio.gather(*(running.ingest(f"note {number}") for number in range(3)))

        async def set_aside() -> bool:
            return [row["state"] for row in await rows(running, endpoint_id)] == ["dead_lettered"] * 3

        await running.until(set_aside)
        hooks.usual = status(200)
        hooks.received.clear()
        assert (await call(running, f"/{endpoint_id}/replay", {"since": began}))["replayed"] == 3
        assert len({one.id for one in await hooks.count(3)}) == 3
        later = running.clock.now().isoformat()
        assert (await call(running, f"/{endpoint_id}/replay", {"since": later}))["replayed"] == 0


async def test_410_disables_the_endpoint_until_an_operator_enables_it(tmp_path, postgres_server):
    async with receiver() as hooks, running_system(tmp_path, postgres_server, **QUICK) as running:
        hooks.usual = status(410)
        endpoint_id, _ = await subscribe(running, hooks, "request.parsed")
        await running.ingest("one")

        async def disabled() -> bool:
            return not (await call(running, f"/{endpoint_id}", method="GET"))["endpoint"]["enabled"]

        await running.until(disabled)
        shown = await call(running, f"/{endpoint_id}", method="GET")
        assert shown["endpoint"]["disabled_reason"] == "the receiver answered 410: it wants no more events"
        assert shown["deliveries"] == {"dead_lettered": 1}
        ready = (await running.http.get(running.url(path="/readyz"))).json()
        [part] = [part for part in ready["parts"] if part["part"] == "webhooks"]
        assert (part["name"], part["state"]) == (endpoint_id, "degraded")
        await call(running, f"/{endpoint_id}/replay", {"since": "2020-01-01T00:00:00Z"}, expect=409)

        hooks.usual = status(204)
        assert (await call(running, f"/{endpoint_id}/enable"))["endpoint"]["enabled"]
        assert (await call(running, f"/{endpoint_id}/replay", {"since": "2020-01-01T00:00:00Z"}))["replayed"] == 1
        assert len({one.id for one in await hooks.count(2)}) == 1


async def test_what_waits_for_a_disabled_endpoint_is_set_aside(tmp_path, postgres_server):
    async with (
        receiver() as hooks,
        running_system(tmp_path, postgres_server, webhook_private_networks="allow", webhook_retry_s="3600") as running,
    ):
        hooks.usual = status(500)
        endpoint_id, _ = await subscribe(running, hooks, "request.parsed")
        await running.ingest("one")

        async def waits() -> bool:
            return [row["last_status"] for row in await rows(running, endpoint_id)] == [500]

        await running.until(waits)
        await call(running, f"/{endpoint_id}/disable")
        await running.run_service("switchboard", "webhook upkeep")
        [row] = await rows(running, endpoint_id)
        assert row["state"] == "dead_lettered"
        await running.ingest("two")
        await running.run_service("switchboard", "webhook events")
        assert len(await rows(running, endpoint_id)) == 1


async def test_rotation_signs_with_both_secrets_and_forgets_the_old_one(tmp_path, postgres_server):
    async with receiver() as hooks, running_system(tmp_path, postgres_server, **QUICK) as running:
        endpoint_id, old = await subscribe(running, hooks, "request.parsed")
        new = (await call(running, f"/{endpoint_id}/rotate-secret"))["secret"]
        assert new != old
        assert (await call(running, f"/{endpoint_id}/ping"))["delivered"]
        [ping] = hooks.received
        assert ping.is_signed_with(new)
        assert ping.is_signed_with(old)
        assert ping.type == "webhook.ping"
        # The day is over.
        await running.database.execute("UPDATE webhooks.endpoints SET old_secret_until = now() - interval '1 second'")
        assert (await call(running, f"/{endpoint_id}/ping"))["delivered"]
        assert hooks.received[1].is_signed_with(new)
        assert not hooks.received[1].is_signed_with(old)
        await running.run_service("switchboard", "old webhooks")
        assert await running.database.fetchval("SELECT old_secret FROM webhooks.endpoints") is None


async def test_a_secret_is_shown_once_and_nothing_else_tells_it(tmp_path, postgres_server):
    async with receiver() as hooks, running_system(tmp_path, postgres_server, **QUICK) as running:
        endpoint_id, secret = await subscribe(running, hooks)
        for path in ("", f"/{endpoint_id}", f"/{endpoint_id}/deliveries"):
            response = await running.http.get(running.url(path=f"/api/webhooks{path}"), headers=running.bearer())
            assert response.status_code == 200
            assert secret not in response.text


async def test_only_operators_see_and_change_endpoints(tmp_path, postgres_server):
    async with receiver() as hooks, running_system(tmp_path, postgres_server, **QUICK) as running:
        endpoint_id, _ = await subscribe(running, hooks)
        client = {"Authorization": f"Bearer {running.issue_token('a-client', Role.CLIENT)}"}
        for headers in (client, running.bearer("general")):
            for method, path in (("GET", ""), ("GET", f"/{endpoint_id}"), ("DELETE", f"/{endpoint_id}"), ("POST", "")):
                url = running.url(path=f"/api/webhooks{path}")
                body = {"url": hooks.url} if method == "POST" else None
                response = await running.http.request(method, url, headers=headers, json=body)
                assert response.status_code == 403, response.text
        async with running.mcp("switchboard", caller="general") as mcp:
            names = {tool.name for tool in (await mcp.list_tools()).tools}
            assert not {name for name in names if name.startswith("webhooks.") and name != "webhooks.publish"}
            forged = {"id": "x", "at": "2026-01-01T00:00:00Z", "type": "delivery.delivered", "payload": {}}
            result = await mcp.call_tool("webhooks.publish", {"events": [forged]})
            assert result.is_error
        assert await rows(running, endpoint_id) == []


async def test_bad_input_is_refused_and_nothing_is_stored(tmp_path, postgres_server):
    async with running_system(tmp_path, postgres_server) as running:
        for given, field in (
            ({"url": "http://example.com"}, "url"),
            ({"url": "https://127.0.0.1/"}, "url"),
            ({"url": "https://localhost/"}, "url"),
            ({"url": "https://169.254.169.254/"}, "url"),
            ({"url": "https://example.com", "event_types": ["nothing.*"]}, "event_types"),
            ({"url": "https://example.com", "event_types": []}, "event_types"),
            ({}, "url"),
        ):
            refused = await call(running, body=given, expect=422)
            assert [one["field"] for one in refused["error"]["fields"]] == [field]
        assert await running.database.fetchval("SELECT count(*) FROM webhooks.endpoints") == 0
        unknown = uuid4()
        await call(running, f"/{unknown}", method="GET", expect=404)
        await call(running, f"/{unknown}", method="DELETE", expect=404)
        for verb in ("enable", "disable", "rotate-secret", "ping"):
            await call(running, f"/{unknown}/{verb}", expect=404)
        await call(running, f"/{unknown}/replay", {"since": "2026-01-01T00:00:00Z"}, expect=404)
        await call(running, f"/{unknown}/replay", {}, expect=422)


async def test_there_are_a_hundred_endpoints_at_most(tmp_path, postgres_server):
    async with running_system(tmp_path, postgres_server, names=["switchboard"], **QUICK) as running:
        await running.database.execute(
            "INSERT INTO webhooks.endpoints (id, url, event_types, secret, created_by, created_at, updated_at)"
            " SELECT gen_random_uuid(), 'https://example.com', '{*}', 'whsec_', 'tests', now(), now()"
            " FROM generate_series(1, 99)"
        )
        url, headers = running.url(path="/api/webhooks"), running.bearer()
        given = {"url": "http://127.0.0.1:1/"}
        answers = await asyncio.gather(*(running.http.post(url, json=given, headers=headers) for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409, 409]


async def test_the_command_line_says_and_does_the_same(tmp_path, postgres_server):
    async with receiver() as hooks, running_system(tmp_path, postgres_server, **QUICK) as running:
        pretend_running(running.settings.data_dir, running.urls)

        def command(*words: object) -> Any:
            return answer_here("webhooks", *words, "--data-dir", running.settings.data_dir)

        async def here(*words: object) -> Any:
            return await asyncio.to_thread(command, *words)

        created = await here("create", hooks.url, "--event", "request.*", "--event", "delivery.delivered")
        endpoint_id, secret = created["endpoint"]["id"], created["secret"]
        assert created["endpoint"]["event_types"] == ["request.*", "delivery.delivered"]
        assert await here("list") == await call(running, method="GET")
        assert (await here("ping", endpoint_id))["status"] == 204
        assert hooks.received[0].is_signed_with(secret)
        await running.ingest("I paid the electricity bill")
        await hooks.of_type("delivery.delivered")

        async def settled() -> bool:
            return "sending" not in (await call(running, f"/{endpoint_id}", method="GET"))["deliveries"]

        await running.until(settled)
        by_command = await here("deliveries", endpoint_id)
        assert by_command == await call(running, f"/{endpoint_id}/deliveries", method="GET", limit=20)
        [first, *_] = by_command["deliveries"]
        assert (await here("replay", endpoint_id, "--delivery", first["id"]))["replayed"] == 1
        assert (await here("rotate-secret", endpoint_id))["secret"] != secret
        assert not (await here("disable", endpoint_id))["endpoint"]["enabled"]
        assert (await here("enable", endpoint_id))["endpoint"]["enabled"]
        assert await here("show", endpoint_id) == await call(running, f"/{endpoint_id}", method="GET")
        assert (await here("delete", endpoint_id))["deleted"]
        assert (await here("list"))["endpoints"] == []
        data_dir = running.settings.data_dir
        refused = await asyncio.to_thread(butlers_here, "webhooks", "create", "ftp://x", "--data-dir", data_dir)
        assert refused.returncode == 2
        assert "is not an address such as https://example.com/hooks" in refused.stderr
        assert await running.database.fetchval("SELECT count(*) FROM webhooks.deliveries") == 0
