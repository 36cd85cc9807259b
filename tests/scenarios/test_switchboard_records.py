"""What Switchboard keeps and shows: recent requests first, long-term tables, contracts, and who may reach people."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from butlers.contracts.schemas import ENVELOPES, schema_of
from butlers.operations.operation import Role
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.queries import Queries
from butlers.storage.retention import add_months, ensure_month_partitions
from tests.scenarios.messenger_door import wish
from tests.scenarios.operator_door import read
from tests.scenarios.switchboard_door import call, counts, post, route
from tests.scenarios.test_switchboard_skills import learned, to_relationship
from tests.system import OWNER_CHAT_ID, RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTRACTS = Path(__file__).parents[2] / "docs" / "contracts"
MANY = 4000
LONG_TERM = (
    "butler_registry",
    "routing_log",
    "extraction_queue",
    "extraction_log",
    "notifications",
    "dashboard_audit_log",
)
# Two in one instant whose ids stand in the other order, as two processes may make them.
_FILL = """
    INSERT INTO switchboard.message_inbox
        (request_id, received_at, request_context, normalized_text, policy_tier, dedupe_key, submitted_by,
         schema_version, source_channel, lifecycle_state, final_state_at, updated_at)
    SELECT uuidv7(make_interval(secs => n)), $1::timestamptz - make_interval(secs => n / 2),
           '{}', 'old', 'default', n::text,
           'tests', 'ingest.v1', 'api', 'parsed', $1, $1
    FROM generate_series(1, $2) AS n
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("records"), postgres_server) as system:
        yield system


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled(running: RunningSystem) -> RunningSystem:
    """With many requests that have ended."""
    last_month = add_months(running.clock.now().date().replace(day=1), -1)
    async with running.database.connection() as connection:
        await ensure_month_partitions(connection, "switchboard", "message_inbox", last_month, 0)
    await running.database.execute(_FILL, running.clock.now() - timedelta(seconds=60), MANY)
    await running.database.execute("ANALYZE switchboard.message_inbox")
    return running


# --- recent first ----------------------------------------------------------------------------------------------------


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def cost(part: dict[str, Any]) -> float:
    """Rows that were looked at; the partition of a month to come has none."""
    return float(part["Actual Rows"] + part.get("Rows Removed by Filter", 0))


async def plan_of(
    running: RunningSystem, name: str, *values: Any, package: str = "butlers.switchboard"
) -> list[dict[str, Any]]:
    """The parts of the plan by which PostgreSQL answers a query, as it is after many calls."""
    query = Queries.load(package, schema="switchboard")[name]
    given = ", ".join("NULL" if value is None else f"'{value}'" for value in values)
    async with running.database.transaction() as connection:
        await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        await connection.execute(f"PREPARE looked_at AS {query}")
        explained = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE looked_at ({given})")
        await connection.execute("DEALLOCATE looked_at")
    (document,) = json.loads(explained) if isinstance(explained, str) else explained
    return list(nodes(document["Plan"]))


def rows_touched(plan: list[dict[str, Any]]) -> float:
    """Of the inbox, all by an index and none sorted."""
    assert {"Sort", "Incremental Sort"}.isdisjoint(part["Node Type"] for part in plan), plan
    scans = [part for part in plan if part.get("Relation Name", "").startswith("message_inbox") and cost(part)]
    assert scans and all(part["Node Type"].startswith("Index") for part in scans), plan
    return sum(map(cost, scans))


@pytest.mark.scenario("S3-007")
async def test_recent_first_operational_queries(filled: RunningSystem) -> None:
    running = filled
    newest = (await running.ingest("the newest of all"))["request_id"]
    await running.finished(newest)

    listed: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = await read(running, "requests", limit=500, **cursor)
        listed += page["requests"]
        if page["next_cursor"] is None:
            break
        cursor = {"before": page["next_cursor"]}
    expected = await running.database.fetch(
        "SELECT request_id FROM switchboard.message_inbox ORDER BY received_at DESC, request_id DESC"
    )
    assert [one["request_id"] for one in listed] == [str(row["request_id"]) for row in expected], "each once"
    assert (listed[0]["request_id"], len(listed)) == (newest, MANY + 1)
    by_state = await read(running, "requests", limit=3, state="parsed")
    assert [one["request_id"] for one in by_state["requests"]] == [one["request_id"] for one in listed[:3]]

    deep = expected[MANY - 100]["request_id"]
    for before in (None, deep):
        plan = await plan_of(running, "list_requests", before, 50)
        assert rows_touched(plan) <= 60, "a page costs the same wherever it is"


async def test_a_listing_of_a_rare_state_does_not_walk_over_the_others(filled: RunningSystem) -> None:
    """The oldest of all is the only one that failed."""
    running = filled
    oldest = await running.database.fetchval(
        "UPDATE switchboard.message_inbox SET lifecycle_state = 'errored' WHERE request_id ="
        " (SELECT request_id FROM switchboard.message_inbox ORDER BY received_at, request_id LIMIT 1)"
        " RETURNING request_id"
    )
    await running.database.execute("ANALYZE switchboard.message_inbox")
    assert [one["request_id"] for one in (await read(running, "requests", state="errored"))["requests"]] == [
        str(oldest)
    ]
    first = await read(running, "requests", state="parsed", limit=500)
    second = await read(running, "requests", state="parsed", limit=500, before=first["next_cursor"])
    ids = [one["request_id"] for page in (first, second) for one in page["requests"]]
    assert len(set(ids)) == 1000
    for state in ("errored", "parsed", "accepted"):
        plan = await plan_of(running, "list_requests_in_state", None, 50, state)
        scans = [part for part in plan if part.get("Relation Name", "").startswith("message_inbox")]
        assert sum(map(cost, scans)) <= 60, (state, plan)


async def test_the_status_counts_what_is_open_and_what_came_to_its_end_today(filled: RunningSystem) -> None:
    running = filled
    before = (await read(running, "status"))["requests"]
    moved = (
        "UPDATE switchboard.message_inbox SET received_at = received_at - interval '25 hours' WHERE request_id IN"
        " (SELECT request_id FROM switchboard.message_inbox WHERE lifecycle_state = 'parsed' LIMIT 7)"
    )
    await running.database.execute(moved)
    old = await running.database.fetchval(
        "UPDATE switchboard.message_inbox SET lifecycle_state = 'accepted', not_before = 'infinity'"
        " WHERE request_id = (SELECT request_id FROM switchboard.message_inbox"
        "  WHERE lifecycle_state = 'parsed' AND received_at < $1 LIMIT 1) RETURNING request_id",
        running.clock.now() - timedelta(hours=24),
    )
    counted = (await read(running, "status"))["requests"]
    assert (counted["parsed"], counted["accepted"]) == (before["parsed"] - 7, 1)
    await running.database.execute(
        "UPDATE switchboard.message_inbox SET lifecycle_state = 'parsed', not_before = NULL WHERE request_id = $1", old
    )


async def test_a_chain_of_any_length_is_read_as_far_as_it_may_be_told(filled: RunningSystem) -> None:
    running = filled
    await running.database.execute("UPDATE switchboard.message_inbox SET thread_key = 'chain'")
    await running.database.execute("ANALYZE switchboard.message_inbox")
    newest = await running.database.fetchrow(
        "SELECT received_at, request_id FROM switchboard.message_inbox ORDER BY received_at DESC, request_id DESC"
    )
    assert newest is not None
    plan = await plan_of(running, "chain_before", *newest, 200_000, 100, package="butlers.switchboard.routing")
    scans = [part for part in plan if part.get("Relation Name", "").startswith("message_inbox")]
    assert sum(map(cost, scans)) <= 120, plan


# --- contracts -------------------------------------------------------------------------------------------------------

VERSIONS = {
    "missing": (None, "is required; supported: {0}.v1"),
    "newer": ("{0}.v2", "is newer than this system speaks; supported: {0}.v1"),
    "older": ("{0}.v0", "is not supported any more; supported: {0}.v1"),
    "unknown": ("{0}.first", "is unknown; supported: {0}.v1"),
    "of something else": ("heartbeat.v1", "is unknown; supported: {0}.v1"),
    "a number": (1, "is unknown; supported: {0}.v1"),
}


def versioned(document: dict[str, Any], family: str, version: Any) -> dict[str, Any]:
    """The document with another version, and a field that this version may have."""
    told = version.format(family) if isinstance(version, str) else version
    return {name: value for name, value in document.items() if name != "schema_version"} | (
        {"a_field_of_the_future": True} | ({} if told is None else {"schema_version": told})
    )


async def refused_at_mcp(running: RunningSystem, butler: str, tool: str, caller: str, document: Any) -> dict[str, Any]:
    async with running.mcp(butler, caller=caller) as client:
        answers = [await call(client, tool, document) for _ in range(2)]
    assert answers[0]["error"] == answers[1]["error"]
    told: dict[str, Any] = answers[0]["error"]
    return told


@pytest.mark.scenario("S3-057")
@pytest.mark.parametrize("which", VERSIONS)
async def test_a_version_that_is_not_spoken_is_refused_the_same_at_every_door(
    running: RunningSystem, which: str
) -> None:
    version, says = VERSIONS[which]
    before = await counts(running, ("ingress_dedupe", "message_inbox", "routing_log", "notifications"))

    document = versioned(running.envelope("from another time"), "ingest", version)
    answers = [await post(running, document) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [422, 422]
    assert answers[0].json() == answers[1].json()
    by_http = answers[0].json()["error"]
    by_mcp = await refused_at_mcp(running, "switchboard", "ingest", "operator", document)
    routed = versioned(route(running, "finance", "from another time"), "route", version)
    by_route = await refused_at_mcp(running, "finance", "route.execute", "switchboard", routed)
    wished = versioned(wish("from another time"), "notify", version)
    by_notify = await refused_at_mcp(running, "switchboard", "notify.dispatch", "health", wished)

    for family, told in {"ingest": (by_http, by_mcp), "route": (by_route,), "notify": (by_notify,)}.items():
        for error in told:
            assert (error["class"], error["retryable"]) == ("validation_error", False)
            assert error["message"] == f"schema_version: {says.format(family)}"
    assert await counts(running, ("ingress_dedupe", "message_inbox", "routing_log", "notifications")) == before
    assert await running.database.fetchval("SELECT count(*) FROM finance.route_inbox") == 0


def fingerprint(schema: dict[str, Any]) -> str:
    text = json.dumps(without_descriptions(schema), indent=2, sort_keys=True) + "\n"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def without_descriptions(schema: Any) -> Any:
    """The words of a description are no part of the contract; a field that is called `description` is."""
    if isinstance(schema, list):
        return [without_descriptions(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "description" or not isinstance(value, str)}
    return {key: without_descriptions(value) for key, value in kept.items()}


async def test_a_fingerprint_is_of_everything_but_descriptions() -> None:
    text = {"type": "string", "maxLength": 5}
    schema = {"properties": {"note": text}, "required": ["note"], "description": "a note"}
    same = schema | {"properties": {"note": text | {"description": "what to keep"}}, "description": "in other words"}
    assert fingerprint(same) == fingerprint(schema)
    others: list[dict[str, Any]] = [
        schema | {"properties": {"note": text | {"maxLength": 6}}},
        schema | {"properties": {"note": text | {"default": ""}}},
        schema | {"properties": {"note": text, "description": text}},
        schema | {"required": []},
        schema | {"additionalProperties": False},
    ]
    assert len({fingerprint(one) for one in [schema, *others]}) == len(others) + 1


@pytest.mark.scenario("S3-057")
async def test_no_schema_changes_without_a_new_version_and_guidance() -> None:
    page = (CONTRACTS / "README.md").read_text(encoding="utf-8")
    listed = dict(
        re.findall(r"^\| `([\w.]+)` \| \[schema\]\([\w.]+\) \| `([0-9a-f]{16})` \|$", page, flags=re.MULTILINE)
    )
    made = {one.VERSION: fingerprint(json.loads(schema_of(one))) for one in ENVELOPES}
    assert listed == made, "a schema changed: give it the next version, see docs/contracts/README.md"
    assert {path.name for path in CONTRACTS.glob("*.json")} == {f"{version}.schema.json" for version in listed}
    families = {version.rpartition(".v")[0]: int(version.rpartition(".v")[2]) for version in listed}
    later = [f"{family}.v{number}" for family, number in families.items() if number > 1]
    guidance = page.partition("## Migrations")[2]
    assert guidance and all(version in guidance for version in later), "say how documents of the old version are turned"


# --- for the long term -----------------------------------------------------------------------------------------------


async def test_long_term_tables_are_written_by_real_traffic(running: RunningSystem) -> None:
    trace = await to_relationship(running, "I lent Tom 50 euros, he is a friend")
    request_id = trace["request_id"]
    await learned(running, request_id)
    reply = await running.http.post(
        running.url(path=f"/api/requests/{request_id}/retry"), json={"reason": "again"}, headers=running.bearer()
    )
    assert reply.status_code == 409  # it has ended well, and that somebody tried is on record
    for table in LONG_TERM:

        async def written(table: str = table) -> bool:
            return bool(await running.database.fetchval(f"SELECT count(*) FROM switchboard.{table}"))

        await running.until(written)
        kind = await running.database.fetchval(
            "SELECT relkind FROM pg_class WHERE oid = $1::text::regclass", f"switchboard.{table}"
        )
        assert kind in (b"r", "r"), "kept beyond the months of the inbox"
    registered = await running.database.fetch("SELECT name FROM switchboard.butler_registry")
    assert {row["name"] for row in registered} == running.roster.keys()
    for table in ("routing_log", "extraction_queue", "extraction_log", "notifications"):
        found = f"SELECT count(*) FROM switchboard.{table} WHERE request_id = $1::text::uuid"
        assert await running.database.fetchval(found, request_id), table


# --- who may reach people --------------------------------------------------------------------------------------------


def card(running: RunningSystem, name: str, *capabilities: str) -> dict[str, Any]:
    return {
        "name": name,
        "endpoint_url": running.url("general"),
        "transport": "mcp",
        "description": "keeps plants alive",
        "triggers": ["fern", "watering"],
        "capabilities": ["route.execute", *capabilities],
    }


@pytest.mark.scenario("S3-109")
async def test_ownership_enforcement(running: RunningSystem) -> None:
    token = running.issue_token("gardener", Role.BUTLER)
    tools = ("telegram_send_message", "bot_telegram_reply", "user_email_send", "sms_send", "chat_react")
    async with running.mcp("switchboard", caller=None, token=token) as client:
        for tool in tools:
            answer = await call(client, "register_butler", card(running, "gardener", tool))
            error = answer["error"]
            assert (error["class"], error["retryable"]) == ("validation_error", False)
            assert tool in error["message"] and "only messenger may have channel tools; use notify" in error["message"]
        beat = await call(client, "butler.heartbeat")
        assert beat == {"status": "ok", "registered": False}, "a sign of life makes nobody eligible"
    listed = (await read(running, "butlers"))["butlers"]
    assert "gardener" not in {butler["name"] for butler in listed}
    pinned = running.envelope("the fern wants watering") | {"control": {"pinned_target": "gardener"}}
    refused = await post(running, pinned)
    assert (refused.status_code, refused.json()["error"]["fields"][0]["field"]) == (422, "control.pinned_target")
    routed = await running.finished((await running.ingest("the fern wants watering"))["request_id"])
    assert "gardener" not in {segment["butler"] for segment in routed["routing"]["decision"]["segments"]}

    # One that is registered already does not come by channel tools later.
    async with running.mcp("switchboard", caller="travel") as client:
        grown = running.butler("travel").card() | {"capabilities": ["route.execute", "telegram_send_message"]}
        assert (await call(client, "register_butler", grown))["error"]["class"] == "validation_error"
    (travel,) = [butler for butler in (await read(running, "butlers"))["butlers"] if butler["name"] == "travel"]
    assert "telegram_send_message" not in travel["capabilities"]

    # What is left is notify: through Switchboard to Messenger, in the caller's own name.
    async with running.mcp("switchboard", caller=None, token=token) as client:
        assert (await call(client, "register_butler", card(running, "gardener")))["status"] == "ok"
        said = wish("The fern is fine.", origin_butler="gardener", recipient=str(OWNER_CHAT_ID))
        answer = await call(client, "notify.dispatch", said)
    assert answer["status"] == "ok", answer
    assert "[gardener] The fern is fine." in await running.answers()
    stored = await running.database.fetchrow(
        "SELECT origin_butler, status FROM messenger.delivery_requests WHERE id = $1::text::uuid",
        answer["delivery"]["delivery_id"],
    )
    assert stored is not None and tuple(stored) == ("gardener", "delivered")
