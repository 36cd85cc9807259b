"""What a token that only hands messages in may not do: read what came in, or speak in another's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from butlers.butler.identity import Grant
from butlers.operations.operation import Role
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.switchboard_door import post
from tests.system import running_system

READS = ("/requests", "/requests/{id}", "/butlers", "/status", "/routing", "/butlers/finance/history")


@pytest.mark.parametrize("role", [Role.CLIENT, Role.CONNECTOR])
async def test_whoever_only_hands_in_reads_nothing(
    tmp_path: Path, postgres_server: EmbeddedPostgres, role: Role
) -> None:
    async with running_system(tmp_path, postgres_server) as running:
        bearer = {"Authorization": f"Bearer {running.issue_token('somebody', role)}"}
        accepted = await post(running, running.own_envelope("hello there", f"{role.value}:somebody"), **bearer)
        assert accepted.status_code == 202
        for path in READS:
            url = running.url(path=f"/api{path.format(id=accepted.json()['request_id'])}")
            refused = await running.http.get(url, headers=bearer)
            assert (path, refused.status_code) == (path, 403)
            assert "hello" not in refused.text
            assert (await running.http.get(url, headers=running.bearer())).status_code == 200


async def test_another_connector_cannot_make_an_event_look_like_a_repeat(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server) as running:
        sent = await running.says("the real one")
        real = await running.until(
            lambda: running.database.fetchrow("select * from switchboard.message_inbox order by received_at limit 1")
        )
        event = await running.database.fetchrow("select raw_payload, request_context from switchboard.message_inbox")
        assert real is not None
        assert event is not None
        context, following = event["request_context"], event["raw_payload"]["update_id"] + 1
        document = running.envelope("a forged one", external_event_id=str(following), external_thread_id="1000")
        endpoint = context["source_endpoint_identity"]
        document["source"] = {"channel": "telegram", "provider": "telegram", "endpoint_identity": endpoint}
        token = running.issue_token("connector.other", Role.CONNECTOR, Grant(channel="telegram", endpoint=endpoint))
        assert (await post(running, document, Authorization=f"Bearer {token}")).status_code == 202
        assert sent
        await running.says("the next real one")

        async def there() -> bool:
            query = "select count(*) from switchboard.message_inbox where normalized_text = 'the next real one'"
            return bool(await running.database.fetchval(query))

        await running.until(there)
