"""`/healthz` says that the process serves; `/readyz` says how its parts are, and what to do about those that fail."""

from __future__ import annotations

import asyncio
from collections import namedtuple
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from butlers.butler.health import Condition, Finding, Health, LastKnown
from butlers.channels.email import SIMULATED_ADDRESS
from butlers.channels.email.simulator import serve_mail
from butlers.clock import SystemClock
from butlers.daemon.services import STOPS_BELOW, disk_finding
from butlers.daemon.simulation import Simulated
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import deliver, fault, wish
from tests.system import HOST, RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("system"), postgres_server) as system:
        yield system


async def ready(running: RunningSystem, butler: str = "switchboard") -> tuple[int, dict[str, Any]]:
    response = await running.http.get(running.url(butler, "/readyz"))
    return response.status_code, response.json()


async def part(running: RunningSystem, butler: str, name: str) -> dict[str, dict[str, Any]]:
    """The lines of one part, by the name of the member."""
    _, document = await ready(running, butler)
    return {line.get("name", ""): line for line in document["parts"] if line["part"] == name}


async def when_part_is(running: RunningSystem, butler: str, name: str, state: str) -> dict[str, Any]:
    """The first line of a part in that state, as soon as there is one."""

    async def look() -> dict[str, Any]:
        return next((line for line in (await part(running, butler, name)).values() if line["state"] == state), {})

    return await running.until(look)


async def test_every_butler_is_alive_and_ready_and_names_its_parts(running: RunningSystem) -> None:
    for butler in running.roster:
        alive = await running.http.get(running.url(butler, "/healthz"))
        assert alive.status_code == 200
        assert alive.json().items() >= {"status": "ok", "butler": butler, "state": "ok"}.items()
        status, document = await ready(running, butler)
        assert (status, document["ready"], document["status"]) == (200, True, "ok"), document
        assert {"database", "disk"} <= {line["part"] for line in document["parts"]}
    assert (await part(running, "messenger", "channels")).keys() == {"telegram.bot", "email.bot"}
    assert (await part(running, "switchboard", "disk"))[""]["free_bytes"] > 0


async def test_connectors_are_named_with_their_state(running: RunningSystem) -> None:
    await when_part_is(running, "switchboard", "telegram connector", "ok")
    await fault(running, "error_5xx", method="getUpdates", status=502, times=None)
    try:
        # A poll that is under way is answered when somebody writes.
        await running.says("hello")
        line = await when_part_is(running, "switchboard", "telegram connector", "degraded")
        assert "502" in line["sentence"]
        status, document = await ready(running)
        assert (status, document["status"]) == (200, "degraded")
    finally:
        await running.control("DELETE", "/faults")
    await when_part_is(running, "switchboard", "telegram connector", "ok")


async def test_a_connector_is_listed_once(running: RunningSystem) -> None:
    """One of this process by its name; one of another process by its heartbeats."""

    async def reported() -> bool:
        listed = (await running.http.get(running.url(path="/api/connectors"))).json()["connectors"]
        return [row["connector_type"] for row in listed] == ["telegram"]

    await running.until(reported)
    assert await part(running, "switchboard", "connectors") == {}
    await running.database.execute(
        "update switchboard.connector_registry set last_heartbeat_at = now() - interval '5 minutes'"
    )
    line = await when_part_is(running, "switchboard", "connectors", "degraded")  # its heartbeats do not arrive
    assert "said nothing" in line["sentence"]
    await running.database.execute(
        "update switchboard.connector_registry set instance_id = gen_random_uuid(), last_heartbeat_at = now()"
    )
    line = await when_part_is(running, "switchboard", "connectors", "ok")
    assert (line["name"].partition(":")[0], line["liveness"]) == ("telegram", "online")


async def test_a_channel_whose_provider_fails_is_degraded_with_the_reason(running: RunningSystem) -> None:
    await running.database.execute(
        "update messenger.channel_states set state = 'open', trip_reason = 'the provider answered 502', "
        "probe_at = now() + interval '1 hour' where name = 'telegram.bot'"
    )
    try:
        line = (await part(running, "messenger", "channels"))["telegram.bot"]
        assert (line["state"], line["circuit"]) == ("degraded", "open")
        assert "the provider answered 502" in line["sentence"]
        assert (await ready(running, "messenger"))[0] == 200
    finally:
        await running.database.execute(
            "update messenger.channel_states set state = 'closed', trip_reason = null, probe_at = null"
        )
    assert (await deliver(running, wish("hello")))["status"] == "ok"


async def test_a_full_disk_is_not_ready_and_says_what_to_do(
    running: RunningSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("butlers.daemon.services.shutil.disk_usage", lambda _path: usage(free=STOPS_BELOW - 1))
    status, document = await ready(running)
    assert (status, document["ready"], document["status"]) == (503, False, "failing")
    line = next(line for line in document["parts"] if line["part"] == "disk")
    assert "63 MiB" in line["sentence"]
    assert "--data-dir" in line["remedy"]
    assert (await running.http.get(running.url(path="/healthz"))).status_code == 200


async def test_without_its_database_a_butler_is_alive_and_not_ready(
    running: RunningSystem, postgres_server: EmbeddedPostgres
) -> None:
    name = await running.database.fetchval("select current_database()")
    outside = await asyncpg.connect(postgres_server.uri("postgres"))
    try:
        await outside.execute(f'alter database "{name}" allow_connections false')
        await outside.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
        status, document = await ready(running, "general")
        assert (status, document["ready"], document["status"]) == (503, False, "failing")
        assert next(line for line in document["parts"] if line["part"] == "database")["state"] == "failing"
        assert (await running.http.get(running.url("general", "/healthz"))).status_code == 200
    finally:
        await outside.execute(f'alter database "{name}" allow_connections true')
        await outside.close()

    async def back() -> bool:
        return (await ready(running, "general"))[0] == 200

    await running.until(back)


async def test_a_wrong_imap_password_is_named_and_turns_nothing_off(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    credentials = {"BUTLER_EMAIL_ADDRESS": SIMULATED_ADDRESS, "BUTLER_EMAIL_PASSWORD": "mistyped"}
    async with serve_mail(HOST, 0, 0, 0, clock=SystemClock(), accounts={SIMULATED_ADDRESS: "right"}) as mail:
        settings: dict[str, Any] = {"imap_host": HOST, "imap_port": mail.imap_port, "bounce_poll_s": 0.1}
        settings |= {"smtp_host": HOST, "smtp_port": mail.smtp_port}
        async with running_system(
            tmp_path,
            postgres_server,
            names=["messenger"],
            environment=credentials,
            simulated=Simulated({"telegram", "calendar"}),
            **settings,
        ) as running:
            line = await when_part_is(running, "messenger", "services", "degraded")
            assert line["name"] == "bounces"
            assert "mistyped" not in str(line)
            status, document = await ready(running, "messenger")
            assert (status, document["ready"], document["status"]) == (200, True, "degraded")
            assert document["failing_services"] == ["bounces"]
            assert (await running.http.get(running.url("messenger", "/healthz"))).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/api/openapi.json", "/api/status", "/nowhere"])
async def test_pages_of_other_sites_see_nothing_of_a_butler(running: RunningSystem, path: str) -> None:
    url = running.url(path=path)
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await running.http.get(url, headers=headers)).status_code == 403, headers
    assert (await running.http.get(url, headers={"Origin": url})).status_code != 403
    assert (await running.http.get(f"{url}?x=%00")).status_code == 422


# --- the mechanism itself ---------------------------------------------------------------------------------------------


async def test_only_an_essential_part_that_fails_makes_a_butler_not_ready() -> None:
    shared, probes = Health(), LastKnown()
    health = Health(shared=shared)
    health.register("credentials", probes.check)
    probes.note("imap", Finding.failing("The password is refused.", remedy="Set it."))
    report = await health.examine()
    assert (report.ready, report.condition) == (True, Condition.DEGRADED)
    probes.forget("imap")
    probes.note("smtp", Finding())
    assert (await health.examine()).condition is Condition.OK

    async def away() -> Finding:
        raise OSError("gone")

    shared.register("database", away, essential=True)
    report = await health.examine()
    assert (report.ready, report.condition) == (False, Condition.FAILING)
    with pytest.raises(ValueError, match="database"):
        health.register("database", away)


async def test_a_check_that_hangs_fails_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("butlers.butler.health.CHECK_S", 0.05)
    asked = 0

    async def hangs() -> Finding:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        return Finding()

    health = Health()
    health.register("slow", hangs, essential=True)
    reports = await asyncio.gather(*(health.examine() for _ in range(50)))
    assert asked == 1  # many callers cost what one costs
    assert {report.parts[0].finding.condition for report in reports} == {Condition.FAILING}
    assert "0.05 s" in reports[0].parts[0].finding.sentence


@pytest.mark.parametrize(
    ("free", "condition"),
    [
        (STOPS_BELOW - 1, Condition.FAILING),
        (STOPS_BELOW, Condition.DEGRADED),
        (2**30 - 1, Condition.DEGRADED),
        (2**30, Condition.OK),
    ],
)
async def test_how_much_space_is_enough(free: int, condition: Condition) -> None:
    assert disk_finding(free).condition is condition
