from __future__ import annotations
import pytest, time, json, asyncio
from pathlib import Path
from butlers.storage.embedded import EmbeddedPostgres
from tests.system import RunningSystem, running_system


@pytest.mark.parametrize("what", ["plain-stop", "deep-wait"])
async def test_x(tmp_path: Path, postgres_server: EmbeddedPostgres, what) -> None:
    async with running_system(tmp_path, postgres_server) as running:
        p = running.url(path="/api/ingest")
        e = running.envelope("x")
        if what == "plain-stop":
            await running.ingest("x")
            t = time.time()
            await running.stop()
            print("stop", what, time.time() - t)
            print(
                [
                    dict(r)
                    for r in await running.database.fetch(
                        "select lifecycle_state, attempts, claimed_by from switchboard.message_inbox"
                    )
                ]
            )
            print(
                [
                    dict(r)
                    for r in await running.database.fetch(
                        "select lifecycle_state, attempts, response from general.route_inbox"
                    )
                ]
            )
            print([dict(r) for r in await running.database.fetch("select status from messenger.delivery_requests")])
            print(await running.answers())
        if what == "deep-wait":
            for depth in (150,):
                raw = json.dumps(e).replace('{"text": "x"}', "[" * depth + "]" * depth)
                r = await running.http.post(p, content=raw, headers={"content-type": "application/json"})
                print("deep", depth, r.status_code, r.text[:300])
                print(await running.finished(r.json()["request_id"]))
        t = time.time()
    print("stop", what, time.time() - t)
