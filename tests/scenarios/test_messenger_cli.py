"""Deliveries and dead letters at the command line and over HTTP, on deliveries that were really made."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest

from butlers.operations.operation import Role
from tests.integration.processes.command import Completed, butlers, butlers_here, pretend_running
from tests.scenarios.messenger_door import deliver, execute, fault, lineage, route, rows, sends, wish
from tests.scenarios.shared_system import running, system
from tests.scenarios.test_messenger_tools import delivered, failed, set_aside
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def cli(running: RunningSystem, *arguments: str, code: int = 0) -> Completed:
    """One command of a person on this machine, beside the system in this process: a new one costs most of a second."""
    pretend_running(running.settings.data_dir, running.urls)
    # Not as an option: then it would stand in every command that is suggested.
    where = {"BUTLERS_DATA_DIR": str(running.settings.data_dir)}
    completed = await asyncio.to_thread(butlers_here, *arguments, environment=where)
    assert completed.returncode == code, completed
    return completed


async def lines(running: RunningSystem, *arguments: str, code: int = 0) -> list[str]:
    return (await cli(running, *arguments, code=code)).stdout.splitlines()


async def document(running: RunningSystem, *arguments: str) -> dict[str, Any]:
    [line] = await lines(running, *arguments, "--json")
    read: dict[str, Any] = json.loads(line)
    return read


async def api(running: RunningSystem, verb: str, path: str, *, caller: str = "operator", **options: Any) -> Any:
    return await running.http.request(verb, running.url(path=f"/api{path}"), headers=running.bearer(caller), **options)


# --- the command line ------------------------------------------------------------------------------------------------


async def test_deliveries_are_listed_shown_and_explained(running: RunningSystem) -> None:
    first = await delivered(running, "hello")
    second = await failed(running, "71", origin_butler="finance")
    listed = await lines(running, "deliveries", "list", "--limit", "1")
    assert (listed[0].split()[0], "failed" in listed[0], "finance -> telegram:71" in listed[0]) == (second, True, True)
    assert listed[1].startswith("more: butlers deliveries list --limit 1 --cursor ")
    rest = await document(running, "deliveries", "list", "--cursor", listed[1].split()[-1])
    assert [row["id"] for row in rest["deliveries"]] == [first]
    shown = await lines(running, "deliveries", "show", first)
    assert shown[0] == f"delivery {first}: delivered"
    assert any(line.strip().startswith("provider  calls it") for line in shown)
    assert [row["outcome"] for row in (await document(running, "deliveries", "attempts", second))["attempts"]] == [
        "rejected"
    ]
    # Once as a process of its own, as a person starts it.
    told = await asyncio.to_thread(butlers, "why", second, "--data-dir", running.settings.data_dir)
    why = told.stdout.splitlines()
    assert why[0] == f"delivery {second}: failed"
    assert any("was refused by the provider" in line and "certainly not sent" in line for line in why)
    # Whoever has to say where the system is has to say it again.
    where = f"--data-dir {running.settings.data_dir}"
    assert any(f"butlers deliveries quarantine {where} {second}" in line for line in why)


async def test_why_of_a_request_tells_its_trace_and_each_delivery(running: RunningSystem) -> None:
    reply = await running.ingest("I paid the electricity bill")
    await running.finished(reply["request_id"])
    told = await lines(running, "why", reply["request_id"])
    assert told[0].startswith(f"request {reply['request_id']}: ")
    assert any(line.strip().startswith("route") for line in told)
    assert [line for line in told if line.startswith("delivery ")] == [
        f"delivery {row['id']}: {row['status']}" for row in await rows(running)
    ]
    # A request that did not come in at the door still has deliveries.
    context = lineage(running)
    await delivered(running, "hello", intent="reply", request_context=context)
    explained = await document(running, "why", context["request_id"])
    assert (explained["trace"], len(explained["deliveries"])) == (None, 1)
    complaint = (await cli(running, "why", str(uuid4()), code=2)).stderr
    assert "no such delivery and no such request" in complaint
    assert "must be a UUID" in (await cli(running, "why", "seven", code=2)).stderr


async def test_a_delivery_is_set_aside_inspected_and_discarded(running: RunningSystem) -> None:
    await fault(running, "drop_after")
    answer = await deliver(running, wish("did it arrive?"))
    delivery = answer["delivery"]["delivery_id"]
    said = await lines(running, "deliveries", "quarantine", delivery, "--reason", "look at it later")
    assert said[0].endswith("(it was uncertain)")
    letter = said[1].split()[-1]
    listed = await lines(running, "dead-letters", "list")
    assert (listed[0].split()[0], "not replayable" in listed[0]) == (letter, True)
    shown = await lines(running, "dead-letters", "show", letter)
    assert any("cannot be sent again: uncertain_not_settled" in line for line in shown)
    assert await lines(running, "dead-letters", "discard", letter, "--reason", "it had arrived") == [
        f"discarded dead letter {letter}: it had arrived"
    ]
    assert await lines(running, "dead-letters", "list") == ["no dead letters"]
    [row] = (await document(running, "dead-letters", "list", "--discarded"))["dead_letters"]
    assert (row["discard_reason"], row["discarded_by"]) == ("it had arrived", "operator")
    assert "no such dead letter" in (await cli(running, "dead-letters", "show", str(uuid4()), code=2)).stderr


async def test_an_uncertain_delivery_is_settled_either_way(running: RunningSystem) -> None:
    uncertain = []
    for message in ("it arrived", "send it again"):
        await fault(running, "drop_after")
        uncertain.append((await deliver(running, wish(message)))["delivery"]["delivery_id"])
    arrived, again = uncertain
    assert await lines(running, "deliveries", "settle", arrived, "confirmed_sent") == [
        f"delivery {arrived}: delivered",
        f"follow it with: butlers why {arrived}",
    ]
    assert (await document(running, "deliveries", "settle", again, "send_again"))["status"] == "delivered"
    assert await running.answers() == ["[health] it arrived", "[health] send it again", "[health] send it again"]
    told = await lines(running, "why", arrived)
    assert any("as operator said" in line for line in told)
    complaint = (await cli(running, "deliveries", "settle", arrived, "send_again", code=2)).stderr
    assert "nothing to settle" in complaint


async def test_a_dead_letter_is_replayed(running: RunningSystem) -> None:
    delivery = await failed(running, "75")
    letter = await set_aside(running, delivery)
    # He had blocked the bot, so nothing is sent to him until a person says so.
    await running.control("POST", "/users/75/unblock")
    [held] = await lines(running, "deliveries", "recipients", "--channel", "telegram")
    assert held.startswith("telegram  75  suppressed")
    released = await lines(running, "deliveries", "unsuppress", "telegram", "75")
    assert released[0].startswith("telegram 75 is written to again (it was suppressed:")
    said = await lines(running, "dead-letters", "replay", letter)
    replay = said[0].removeprefix("delivery ").split(":")[0]
    assert said == [f"delivery {replay}: delivered", f"follow it with: butlers why {replay}"]
    assert await running.answers(75) == ["[health] unwanted"]
    assert f"It is a replay of delivery {delivery}." in "\n".join(await lines(running, "why", replay))
    assert any(f"butlers why {replay}" in line for line in await lines(running, "why", delivery))
    complaint = (await cli(running, "dead-letters", "replay", letter, code=2)).stderr
    assert "already_delivered" in complaint


async def test_nothing_is_sent_to_a_suppressed_recipient(running: RunningSystem) -> None:
    said = await lines(running, "deliveries", "suppress", "telegram", "77", "--reason", "asked us to stop")
    assert said[1] == "to take that back: butlers deliveries unsuppress telegram 77"
    response = await execute(running, route(running, wish("hello", recipient="77")))
    assert response["status"] == "error"
    assert (await running.answers(77), await sends(running)) == ([], 0)
    await lines(running, "deliveries", "unsuppress", "telegram", "77")
    await delivered(running, "hello again", recipient="77")
    assert await running.answers(77) == ["[health] hello again"]
    # A group's id begins with a dash and is no option.
    assert "no such recipient" in (await cli(running, "deliveries", "unsuppress", "telegram", "-1007", code=2)).stderr


async def test_a_dry_run_tells_what_would_happen_and_does_nothing(running: RunningSystem) -> None:
    admitted = await lines(running, "deliveries", "dry-run", "hello", "--origin", "health", "--to", "76")
    assert admitted[0] == "admitted: to 76 by telegram.bot"
    refused = await lines(running, "deliveries", "dry-run", "hello", "--channel", "pigeon", code=1)
    assert refused[0] == "invalid"
    assert "channel" in refused[1]
    assert (await rows(running), await running.answers(76)) == ([], [])


async def test_the_way_out_is_looked_at(running: RunningSystem) -> None:
    await delivered(running)
    stats = await lines(running, "deliveries", "stats", "--group-by", "channel")
    assert any(line.startswith("all ") and "success 100.0%" in line for line in stats)
    assert any(line.startswith("telegram ") for line in stats)
    nothing = await lines(running, "deliveries", "stats", "--until", "2020-01-01T00:00:00Z")
    assert "success unknown" in nothing[1]
    assert (await lines(running, "deliveries", "queue"))[0].startswith("in flight: 0;")
    assert any(line.startswith("telegram.bot") for line in await lines(running, "deliveries", "limits"))
    circuits = [line.split()[:2] for line in await lines(running, "deliveries", "circuits")]
    assert {"telegram.bot", "email.bot"} <= {name for name, _ in circuits}
    assert {state for _, state in circuits} == {"closed,"}


# --- HTTP ------------------------------------------------------------------------------------------------------------


async def test_the_api_reads_and_a_person_decides(running: RunningSystem) -> None:
    first, second = await delivered(running), await failed(running, "72")
    page = (await api(running, "GET", "/deliveries?limit=1")).json()
    assert [row["id"] for row in page["deliveries"]] == [second]
    rest = (await api(running, "GET", f"/deliveries?cursor={page['next_cursor']}")).json()
    assert [row["id"] for row in rest["deliveries"]] == [first]
    for path in ("", "/attempts", "/why"):
        assert (await api(running, "GET", f"/deliveries/{first}{path}")).json()["delivery_id"] == first
    body = {"reason": "later"}
    refusal = await api(running, "POST", f"/deliveries/{second}/quarantine", caller="health", json=body)
    assert (refusal.status_code, refusal.json()["error"]["class"]) == (403, "validation_error")
    letter = (await api(running, "POST", f"/deliveries/{second}/quarantine", json=body)).json()["dead_letter_id"]
    shown = (await api(running, "GET", f"/dead-letters/{letter}")).json()
    assert shown["error_summary"] == "quarantined by operator: later"


async def test_the_api_tells_apart_what_is_missing_wrong_and_forbidden(running: RunningSystem) -> None:
    for path in (f"/deliveries/{uuid4()}", f"/deliveries/{uuid4()}/why", f"/dead-letters/{uuid4()}"):
        answer = await api(running, "GET", path)
        assert (answer.status_code, answer.json()["error"]["class"]) == (404, "validation_error"), path
    for path in ("/deliveries?status=gone", "/deliveries/seven", "/deliveries/stats?since=yesterday"):
        assert (await api(running, "GET", path)).status_code == 422, path
    running.issue_token("phone", Role.CLIENT)
    assert (await api(running, "GET", "/deliveries", caller="phone")).status_code == 403
    letter = await set_aside(running, await failed(running, "73"))
    answer = await api(running, "POST", f"/dead-letters/{letter}/discard", content=b"x")
    assert answer.status_code == 415  # a body has to say that it is JSON


async def test_recipients_are_managed_over_the_api(running: RunningSystem) -> None:
    target = {"channel": "telegram", "target": "74"}
    answer = await api(running, "POST", "/recipients", json=target | {"reason": "asked us to stop"})
    assert answer.json()["recipient"]["decided_by"] == "operator"
    assert len((await api(running, "GET", "/recipients")).json()["recipients"]) == 1
    assert (await api(running, "DELETE", "/recipients", params=target)).status_code == 200
    assert (await api(running, "DELETE", "/recipients", params=target)).status_code == 404


async def test_the_routes_are_in_the_description(running: RunningSystem) -> None:
    paths = (await running.http.get(running.url(path="/api/openapi.json"))).json()["paths"]
    assert {"/deliveries", "/deliveries/{delivery_id}/why", "/dead-letters/{dead_letter_id}/replay"} <= paths.keys()
