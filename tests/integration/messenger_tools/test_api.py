"""The HTTP routes over real tools and real rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from fastapi import FastAPI
from pydantic_core import to_json
from starlette.requests import Request

from butlers.butler.identity import Caller
from butlers.butler.toolbox import ToolBox
from butlers.errors import ClassifiedError, TargetUnavailable, from_wire_document
from butlers.operations.http import HttpDoor, add_operations
from butlers.operations.operation import Role
from butlers.operations.table import OPERATIONS
from butlers.switchboard.ingress.api import OperationCalls, may_decide
from tests.integration.messenger_tools.stored_state import SWITCHBOARD, StoredState

ROLES = {"operator": Role.OPERATOR, "health": Role.BUTLER, "phone": Role.CLIENT}


class Line:
    """Switchboard's transport: Messenger's tools as Switchboard calls them, or what stands in for them."""

    def __init__(self, state: StoredState) -> None:
        self._state = state
        self.answers: dict[str, Any] = {}
        self.heard: list[tuple[str, dict[str, Any]]] = []

    async def call(self, butler: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        assert butler == "messenger"
        self.heard.append((tool, dict(arguments)))
        if tool in self.answers:
            if isinstance(answer := self.answers[tool], Exception):
                raise answer
            return dict(answer)
        try:
            return await self._state.tools.call(tool, SWITCHBOARD, dict(arguments))
        except ClassifiedError as error:  # as it comes over MCP
            raise from_wire_document(error.to_wire()) from None

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def line(state: StoredState) -> Line:
    return Line(state)


@pytest.fixture
async def http(line: Line) -> AsyncIterator[httpx2.AsyncClient]:
    def caller_of(request: Request) -> Caller:
        name = request.headers.get("x-caller", "operator")
        return Caller(name=name, role=ROLES[name])

    async def body_of(request: Request) -> bytes:
        return await request.body()

    app = FastAPI()
    calls = OperationCalls(tools=ToolBox(), transport=line)
    operations = [operation for operation in OPERATIONS if operation.butler == "messenger"]
    add_operations(
        app, operations, HttpDoor(caller_of=caller_of, body_of=body_of, may_decide=may_decide, call=calls.call)
    )
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as client:
        yield client


async def test_deliveries_are_listed_filtered_and_paged(state: StoredState, http: httpx2.AsyncClient):
    made = [await state.delivery(status=status) for status in ("delivered", "failed", "failed")]
    page = (await http.get("/deliveries", params={"status": "failed", "limit": 1})).json()
    assert [row["id"] for row in page["deliveries"]] == [str(made[2])]
    rest = (await http.get("/deliveries", params={"status": "failed", "cursor": page["next_cursor"]})).json()
    assert ([row["id"] for row in rest["deliveries"]], rest["next_cursor"]) == ([str(made[1])], None)


async def test_fixed_names_are_not_taken_for_ids(state: StoredState, http: httpx2.AsyncClient):
    for path in ("/deliveries/stats", "/deliveries/queue", "/deliveries/limits", "/deliveries/circuits"):
        assert (await http.get(path)).status_code == 200, path
    delivery = await state.delivery()
    for path in ("", "/attempts", "/why"):
        answer = await http.get(f"/deliveries/{delivery}{path}")
        assert (answer.status_code, answer.json()["delivery_id"]) == (200, str(delivery))


async def test_the_trace_of_a_request_is_served(state: StoredState, http: httpx2.AsyncClient):
    request = state.new_id()
    await state.delivery(request_id=request)
    trace = (await http.get(f"/deliveries/trace/{request}")).json()
    assert (trace["request_id"], len(trace["deliveries"])) == (str(request), 1)


@pytest.mark.parametrize(
    "path", ["/deliveries/{}", "/deliveries/{}/attempts", "/deliveries/{}/why", "/dead-letters/{}"]
)
async def test_what_does_not_exist_is_404(http: httpx2.AsyncClient, path: str):
    answer = await http.get(path.format(uuid4()))
    assert answer.status_code == 404
    assert answer.json()["error"]["class"] == "validation_error"
    assert "no such" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/deliveries?status=gone",
        "/deliveries?limit=501",
        "/deliveries?cursor=x",
        "/deliveries?since=yesterday",
        "/deliveries?request_id=7",
        "/deliveries/stats?group_by=weather",
        "/deliveries/queue?channel=pigeon",
        "/deliveries/seven",
        "/dead-letters?include_discarded=perhaps",
    ],
)
async def test_wrong_parameters_are_422(http: httpx2.AsyncClient, path: str):
    assert (await http.get(path)).status_code == 422, path


async def test_a_person_sets_aside_looks_and_discards(state: StoredState, http: httpx2.AsyncClient):
    delivery = await state.delivery(status="pending")
    answer = await http.post(f"/deliveries/{delivery}/quarantine", json={"reason": "wrong person"})
    letter = answer.json()["dead_letter_id"]
    assert [row["id"] for row in (await http.get("/dead-letters")).json()["dead_letters"]] == [letter]
    assert (await http.get(f"/dead-letters/{letter}")).json()[
        "error_summary"
    ] == "quarantined by operator: wrong person"
    answer = await http.post(f"/dead-letters/{letter}/discard", json={"reason": "enough"})
    assert (answer.status_code, answer.json()["discarded_by"]) == (200, "operator")
    assert (await http.get("/dead-letters")).json()["dead_letters"] == []
    assert len((await http.get("/dead-letters?include_discarded=true")).json()["dead_letters"]) == 1
    assert (await http.post(f"/dead-letters/{letter}/discard", json={"reason": "again"})).status_code == 422


async def test_recipients_are_suppressed_and_released(http: httpx2.AsyncClient):
    target = {"channel": "email", "target": "a+b@example.org"}
    assert (await http.post("/recipients", json=target | {"reason": "asked"})).json()["recipient"][
        "rule"
    ] == "suppressed"
    [row] = (await http.get("/recipients", params={"channel": "email"})).json()["recipients"]
    assert (row["target"], row["decided_by"]) == ("a+b@example.org", "operator")
    assert (await http.delete("/recipients", params=target)).status_code == 200
    assert (await http.delete("/recipients", params=target)).status_code == 404


async def test_whoever_is_no_person_may_not_decide(state: StoredState, http: httpx2.AsyncClient):
    delivery = await state.delivery(status="pending")
    for path in (
        f"/deliveries/{delivery}/settle",
        f"/deliveries/{delivery}/quarantine",
        f"/dead-letters/{delivery}/replay",
        f"/dead-letters/{delivery}/discard",
        "/recipients",
    ):
        answer = await http.post(path, json={"reason": "x"}, headers={"x-caller": "health"})
        assert (answer.status_code, answer.json()["error"]["class"]) == (403, "validation_error"), path
    answer = await http.delete("/recipients?channel=email&target=a", headers={"x-caller": "health"})
    assert answer.status_code == 403
    assert (await state.row("delivery_requests", delivery))["status"] == "pending"


async def test_who_may_only_hand_in_messages_may_not_read(http: httpx2.AsyncClient):
    assert (await http.get("/deliveries", headers={"x-caller": "health"})).status_code == 200
    assert (await http.get("/deliveries", headers={"x-caller": "phone"})).status_code == 403
    assert (await http.post("/deliveries/dry-run", json={}, headers={"x-caller": "phone"})).status_code == 403


async def test_decisions_go_to_messenger_with_the_persons_name(line: Line, http: httpx2.AsyncClient):
    delivery, letter = str(uuid4()), str(uuid4())
    line.answers = {"messenger_delivery_settle": {"status": "delivered"}, "messenger_dead_letter_replay": {"x": 1}}
    assert (await http.post(f"/deliveries/{delivery}/settle", json={"outcome": "confirmed_sent"})).status_code == 200
    assert (await http.post(f"/dead-letters/{letter}/replay")).json() == {"x": 1}
    assert line.heard == [
        (
            "messenger_delivery_settle",
            {"delivery_id": delivery, "outcome": "confirmed_sent", "decided_by": "operator"},
        ),
        ("messenger_dead_letter_replay", {"dead_letter_id": letter, "decided_by": "operator"}),
    ]


async def test_nobody_puts_another_name_or_another_id_into_a_body(line: Line, http: httpx2.AsyncClient):
    for extra in ("decided_by", "delivery_id"):
        answer = await http.post(f"/deliveries/{uuid4()}/quarantine", json={"reason": "x", extra: "bob"})
        assert (answer.status_code, line.heard) == (422, [])
        assert answer.json()["error"]["fields"][0]["field"] == extra


async def test_an_envelope_is_asked_about_as_it_is(line: Line, http: httpx2.AsyncClient):
    line.answers = {"messenger_dry_run": {"valid": True}, "messenger_validate_notify": {"valid": False}}
    notify = {"schema_version": "notify.v1"}
    assert (await http.post("/deliveries/dry-run", json=notify)).json() == {"valid": True}
    assert (await http.post("/deliveries/validate", json=notify)).json() == {"valid": False}
    assert line.heard[0] == ("messenger_dry_run", {"notify_request": notify})
    for body in (b"{", b"[]", to_json("text")):
        answer = await http.post("/deliveries/dry-run", content=body)
        assert (answer.status_code, answer.json()["error"]["class"]) == (422, "validation_error")


async def test_a_messenger_that_is_away_is_503_with_a_hint(line: Line, http: httpx2.AsyncClient):
    line.answers = {"messenger_queue_depth": TargetUnavailable("messenger is away", retry_after=2)}
    answer = await http.get("/deliveries/queue")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json()["error"]["retryable"] is True
