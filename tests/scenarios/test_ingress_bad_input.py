"""Whatever is wrong with what comes in: a 4xx that names the fields, nothing stored, no stack trace, never a 500."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from butlers.operations.operation import Role
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.switchboard_door import call, counts, post
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = {"Content-Type": "application/json"}
Change = Callable[[dict[str, Any]], Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("bad"), postgres_server) as system:
        yield system


def refused(response: httpx2.Response, status: int) -> list[str]:
    """The fields that a refusal names; checks that it says no more than it should."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert "Traceback" not in response.text and ".py" not in response.text
    error = response.json()["error"]
    assert (error["class"], error["retryable"]) == ("validation_error", False)
    assert error["message"]
    assert all(set(field) == {"field", "error"} and field["error"] for field in error["fields"])
    return [field["field"] for field in error["fields"]]


def at(path: str, value: Any) -> Change:
    """Put a value at a dotted path."""

    def change(document: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            document = document.setdefault(parent, {})
        document[last] = value

    return change


def without(path: str) -> Change:
    def change(document: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            document = document[parent]
        del document[last]

    return change


WRONG_DOCUMENTS = {
    "unknown field": (at("colour", "blue"), ["colour"]),
    "unknown field inside": (at("event.colour", "blue"), ["event.colour"]),
    "unknown version": (at("schema_version", "ingest.first"), ["schema_version"]),
    "older version": (at("schema_version", "ingest.v0"), ["schema_version"]),
    "newer version": (at("schema_version", "ingest.v2"), ["schema_version"]),
    "version of another envelope": (at("schema_version", "route.v1"), ["schema_version"]),
    "version that is a number": (at("schema_version", 1), ["schema_version"]),
    "no version": (without("schema_version"), ["schema_version"]),
    "empty text": (at("payload.normalized_text", ""), ["payload.normalized_text"]),
    "blank text": (at("payload.normalized_text", " \n\t"), ["payload.normalized_text"]),
    "text that is a number": (at("payload.normalized_text", 5), ["payload.normalized_text"]),
    "no text": (without("payload.normalized_text"), ["payload.normalized_text"]),
    "text beyond all measure": (at("payload.normalized_text", "x" * 200_001), ["payload.normalized_text"]),
    "naive timestamp": (at("event.observed_at", "2026-01-01T10:00:00"), ["event.observed_at"]),
    "numeric timestamp": (at("event.observed_at", 1767261600), ["event.observed_at"]),
    "numeric timestamp as text": (at("event.observed_at", "1767261600"), ["event.observed_at"]),
    "date without time": (at("event.observed_at", "2026-01-01"), ["event.observed_at"]),
    "month thirteen": (at("event.observed_at", "2026-13-01T10:00:00Z"), ["event.observed_at"]),
    "empty identity": (at("sender.identity", ""), ["sender.identity"]),
    "very long identity": (at("sender.identity", "x" * 513), ["sender.identity"]),
    "unknown channel": (at("source.channel", "pigeon"), ["source.channel"]),
    "provider of another channel": (at("source.provider", "imap"), ["source"]),
    "unknown policy tier": (at("control.policy_tier", "royal"), ["control.policy_tier"]),
    "trace context that is text": (at("control.trace_context", "00-abc"), ["control.trace_context"]),
    "null where an object belongs": (at("payload", None), ["payload"]),
    "NUL in the text": (at("payload.normalized_text", "a\0b"), [""]),
    "NUL deep inside raw": (at("payload.raw", {"a": [{"b": ["c", "d\0"]}]}), [""]),
    "NUL in a key of raw": (at("payload.raw", {"a": {"b\0": 1}}), [""]),
}


@pytest.mark.parametrize("name", WRONG_DOCUMENTS)
async def test_a_wrong_document_is_refused_by_field(running: RunningSystem, name: str) -> None:
    change, fields = WRONG_DOCUMENTS[name]
    document = running.envelope("good text")
    change(document)
    before = await counts(running)

    assert refused(await post(running, document), 422) == fields
    assert await counts(running) == before


async def test_every_wrong_field_is_named_at_once(running: RunningSystem) -> None:
    document = running.envelope("")
    for change in (at("colour", 1), at("event.observed_at", 5), at("sender.identity", " "), without("source.channel")):
        change(document)
    before = await counts(running)

    fields = refused(await post(running, document), 422)
    expected = {"colour", "event.observed_at", "payload.normalized_text", "sender.identity", "source.channel"}
    assert (set(fields), len(fields)) == (expected, len(expected))
    assert await counts(running) == before


@pytest.mark.parametrize(
    ("version", "says"), [("ingest.v2", "newer"), ("ingest.v0", "not supported any more"), ("ingest.x", "unknown")]
)
async def test_parser_behavior_is_deterministic_for_unknown_and_newer_versions(
    running: RunningSystem, version: str, says: str
) -> None:
    document = running.envelope("good text") | {"schema_version": version, "a field of the future": True}
    answers = [(await post(running, document)).json() for _ in range(3)]

    assert answers[0] == answers[1] == answers[2]
    [field] = answers[0]["error"]["fields"]
    assert says in field["error"] and "supported: ingest.v1" in field["error"]


def wrong_bodies(good: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    text = json.dumps(good)
    yield "nothing", b""
    yield "not JSON", b"text=hello"
    yield "half of it", text.encode()[:-10]
    yield "two documents", text.encode() * 2
    yield "a list", b"[]"
    yield "null", b"null"
    yield "invalid UTF-8", text.replace("good", "\udcff").encode("utf-8", "surrogateescape")
    yield (
        "invalid UTF-8 deep inside raw",
        text.replace('"raw": {', '"raw": {"x": ["\udcc3("],').encode("utf-8", "surrogateescape"),
    )
    yield "UTF-16", text.encode("utf-16")
    yield "lone surrogate escape", text.replace("good", "\\ud800").encode()
    yield "NaN", text.replace('"good text"', "NaN").encode()
    yield "infinity", text.replace('"raw": {', '"raw": {"x": Infinity,').encode()
    yield "a number beyond a double", text.replace('"raw": {', '"raw": {"x": 1e999,').encode()
    yield "a number of 5000 digits", text.replace('"raw": {', '"raw": {"x": ' + "1" * 5000 + ",").encode()
    for depth in (300, 5_000, 400_000):
        yield f"nested {depth} deep", text.replace('"raw": {', f'"raw": {{"x": {"[" * depth}{"]" * depth},').encode()


BODIES = {
    name
    for name, _ in wrong_bodies({"payload": {"raw": {"text": "good text"}, "normalized_text": "good text"}, "raw": {}})
}


@pytest.mark.parametrize("name", sorted(BODIES))
async def test_a_body_that_cannot_be_read_is_refused(running: RunningSystem, name: str) -> None:
    body = dict(wrong_bodies(running.envelope("good text")))[name]
    before = await counts(running)
    response = await running.http.post(running.url(path="/api/ingest"), content=body, headers=JSON)

    assert refused(response, 422) == [""]
    assert await counts(running) == before


async def test_bytes_that_are_no_text_echo_nothing(running: RunningSystem) -> None:
    document = running.envelope("good text") | {"secret-field-name": "hunter2"}
    at("event.observed_at", "hunter2")(document)
    assert "hunter2" not in (await post(running, document)).text


# --- size ------------------------------------------------------------------------------------------------------------


async def in_chunks(size: int, chunk: int = 65_536) -> AsyncIterator[bytes]:
    yield b'{"schema_version": "'
    for _ in range(size // chunk):
        yield b"x" * chunk


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_five_megabytes_is_refused(running: RunningSystem, chunked: bool) -> None:
    before = await counts(running)
    content = in_chunks(5_000_000) if chunked else b" " * 5_000_000
    response = await running.http.post(running.url(path="/api/ingest"), content=content, headers=JSON)

    assert refused(response, 413) == [""]
    assert await counts(running) == before
    await running.ingest(f"still here, chunked {chunked}")  # the door is open for the next


# --- the request around it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_body_that_does_not_say_it_is_json_is_refused(running: RunningSystem, kind: str) -> None:
    """These are the types a web page may send to another site without asking first."""
    before = await counts(running)
    assert refused(await post(running, running.envelope("hello"), **{"Content-Type": kind}), 415) == ["content-type"]
    assert await counts(running) == before


@pytest.mark.parametrize("authorization", ["Bearer wrong", "Bearer", "Basic b3BlcmF0b3I6eA==", "", "\xff"])
async def test_a_token_that_is_not_known_is_refused(running: RunningSystem, authorization: str) -> None:
    before = await counts(running)
    headers = httpx2.Headers({"Authorization": authorization}, encoding="latin-1")
    response = await running.http.post(running.url(path="/api/ingest"), json=running.envelope("hello"), headers=headers)

    assert refused(response, 401) == ["authorization"]
    assert response.headers["www-authenticate"] == "Bearer"
    assert await counts(running) == before


async def test_a_revoked_token_is_refused_at_once(running: RunningSystem) -> None:
    token = running.issue_token("kiosk", Role.CLIENT)
    headers = {"Authorization": f"Bearer {token}"}
    accepted = await post(running, running.own_envelope("the kiosk is open", "client:kiosk"), **headers)
    running.tokens.revoke("kiosk")
    before = await counts(running)
    rejected = await post(running, running.envelope("the kiosk is closed"), **headers)

    assert accepted.status_code == 202
    assert refused(rejected, 401) == ["authorization"]
    assert await counts(running) == before


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://["},
    {"Origin": "http://127.0.0.1.evil.example"},
    {"Host": "evil.example"},
    {"Host": "evil.example:40100"},
    {"Host": "["},
    {"Host": "[::1"},
    {"Host": "127.0.0.1@evil.example"},
]


@pytest.mark.parametrize("path", ["/api/ingest", "/api/requests", "/api/butlers", "/api/status"])
@pytest.mark.parametrize("headers", FOREIGN, ids=str)
async def test_a_page_of_another_site_gets_nothing(running: RunningSystem, path: str, headers: dict[str, str]) -> None:
    before = await counts(running)
    if path == "/api/ingest":
        response = await post(running, running.envelope("hello"), **headers)
    else:
        response = await running.http.get(running.url(path=path), headers=headers)

    assert refused(response, 403) == ["host"]
    assert await counts(running) == before


WRONG_REQUESTS = {
    ("GET", "/api/ingest"): (405, []),
    ("PUT", "/api/ingest"): (405, []),
    ("DELETE", "/api/requests"): (405, []),
    ("GET", "/api/nothing"): (404, []),
    ("POST", "/api/ingest/"): (404, []),
    ("GET", "/api/requests/not-a-uuid"): (422, ["request_id"]),
    ("GET", "/api/requests/%00"): (422, ["request_id"]),
    ("GET", "/api/requests/%FF%FE"): (422, ["request_id"]),
    ("GET", "/api/requests/01a1e12e-aaf0-74f8-89f1-646c9c42aa46"): (404, ["request_id"]),
    ("GET", "/api/requests/01a1e12e-aaf0-44f8-89f1-646c9c42aa46"): (404, ["request_id"]),
    ("GET", "/api/requests?limit=0"): (422, ["limit"]),
    ("GET", "/api/requests?limit=501"): (422, ["limit"]),
    ("GET", "/api/requests?limit=many"): (422, ["limit"]),
    ("GET", "/api/requests?before=yesterday"): (422, ["before"]),
    ("GET", "/api/requests?state=bogus"): (422, ["state"]),
    ("GET", "/api/requests?state=%00"): (422, ["state"]),
}


@pytest.mark.parametrize(("verb", "path"), WRONG_REQUESTS)
async def test_a_wrong_request_is_refused(running: RunningSystem, verb: str, path: str) -> None:
    status, fields = WRONG_REQUESTS[verb, path]
    response = await running.http.request(verb, f"{running.url()}{path}")
    assert refused(response, status) == fields


# --- MCP -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["unknown field", "newer version", "naive timestamp", "NUL deep inside raw"])
async def test_the_mcp_door_refuses_the_same(running: RunningSystem, name: str) -> None:
    change, fields = WRONG_DOCUMENTS[name]
    document = running.envelope("good text")
    change(document)
    before = await counts(running)
    async with running.mcp("switchboard") as client:
        answer = await call(client, "ingest", document)

    assert (answer["error"]["class"], answer["error"]["retryable"]) == ("validation_error", False)
    assert [field["field"] for field in answer["error"]["fields"]] == fields
    assert await counts(running) == before


# --- counted, and guarded by a token where wanted --------------------------------------------------------------------


async def test_refusals_are_counted(running: RunningSystem) -> None:
    await post(running, running.envelope(""))
    metrics = (await running.http.get(running.url(path="/metrics"))).text
    [line] = [
        line
        for line in metrics.splitlines()
        if line.startswith("butlers_switchboard_message_rejected_total{") and "validation_error" in line
    ]
    assert float(line.rsplit(" ", 1)[1]) >= 1


async def test_where_a_token_is_required_nobody_enters_without_one(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> None:
    directory = tmp_path_factory.mktemp("guarded")
    async with running_system(directory, postgres_server, api_token_required=True) as running:
        document = running.envelope("hello")
        assert refused(await post(running, document), 401) == ["authorization"]
        for path in ("/api/requests", "/api/butlers", "/api/status"):
            assert refused(await running.http.get(running.url(path=path)), 401) == ["authorization"]
        assert await counts(running) == {"ingress_dedupe": 0, "message_inbox": 0}

        accepted = await post(running, document, **running.bearer())
        assert accepted.status_code == 202
        await running.until(running.answers)


async def test_a_chat_message_that_cannot_be_stored_as_it_is_does_not_stop_the_others(running: RunningSystem) -> None:
    await running.says("I paid\x00 the rent")
    await running.says("I slept badly")

    async def stored() -> list[str]:
        rows = await running.database.fetch(
            "select normalized_text from switchboard.message_inbox"
            " where request_context ->> 'source_channel' = 'telegram' order by received_at"
        )
        return [row["normalized_text"] for row in rows] if len(rows) == 2 else []

    assert await running.until(stored) == ["I paid\ufffd the rent", "I slept badly"]
