"""The same approvals over HTTP and from the command line."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from butlers.butler.identity import OPERATOR, Caller, TokenFile
from butlers.butler.toolbox import ToolBox, authenticate
from butlers.butler.transport import InProcessTransport
from butlers.clock import SystemClock
from butlers.daemon.cli import app as command_line
from butlers.daemon.cli.exits import run_guarded
from butlers.daemon.places import Places
from butlers.errors import TargetUnavailable
from butlers.operations.approvals import OPERATIONS
from butlers.operations.http import HttpDoor, add_operations
from butlers.operations.operation import Role
from butlers.serving.server import GuestServer, listen
from butlers.switchboard.ingress.api import OperationCalls, may_decide
from tests.integration.approvals.conftest import Desk
from tests.integration.approvals.test_gate import GENERAL, SWITCHBOARD, Butler, Post

HOST = "127.0.0.1"
NOBODY = "01890000-0000-7000-8000-000000000000"


class Away:
    """A transport to butlers of other processes, none of which is up."""

    async def call(self, butler: str, _tool: str, _arguments: Any) -> dict[str, Any]:
        raise TargetUnavailable(f"no address is known for {butler}", retry_after=3)

    async def close(self) -> None:
        return


@dataclass(slots=True, kw_only=True)
class Door:
    """Switchboard's API with a butler behind it."""

    butler: Butler
    post: Post
    http: httpx2.AsyncClient
    tokens: TokenFile
    data_dir: Path

    async def ask(self, verb: str, path: str, body: Any = None, *, name: str = OPERATOR) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.tokens.secret_of(name)}"}
        response = await self.http.request(verb, f"/api/approvals{path}", json=body, headers=headers)
        return response.status_code, response.json()

    async def command(self, *arguments: object) -> tuple[int, str, str]:
        """Exit code, output and complaint of `butlers approvals ...`."""
        return await asyncio.to_thread(self._command, [*map(str, arguments), "--data-dir", str(self.data_dir)])

    def _command(self, arguments: list[str]) -> tuple[int, str, str]:
        output, complaint = io.StringIO(), io.StringIO()
        with redirect_stdout(output), redirect_stderr(complaint):
            try:
                code = run_guarded(lambda: command_line(["approvals", *arguments]))
            except SystemExit as ended:
                assert isinstance(ended.code, int)
                code = ended.code
        return code, output.getvalue(), complaint.getvalue()

    async def answer(self, *arguments: object) -> Any:
        code, output, complaint = await self.command(*arguments, "--json")
        assert code == 0, complaint
        return json.loads(output)


@pytest.fixture
async def door(desk: Desk, tmp_path: Path) -> AsyncIterator[Door]:
    post = Post()
    butler = Butler(desk.approvals, post)
    places = Places(tmp_path / "data")
    places.create()
    tokens = TokenFile(places.tokens, SystemClock())
    for name, role in ((OPERATOR, Role.OPERATOR), ("general", Role.BUTLER), ("telegram", Role.CONNECTOR)):
        tokens.issue(name, role)
    boxes = {"messenger": butler.box, "finance": ToolBox()}
    transport = InProcessTransport(caller=SWITCHBOARD, tool_boxes=boxes, elsewhere=Away())

    def caller_of(request: Request) -> Caller:
        caller = authenticate(request, tokens)
        assert caller is not None
        return caller

    api = FastAPI()
    calls = OperationCalls(tools=ToolBox(), transport=transport)
    body_of = Request.body
    add_operations(
        api, OPERATIONS, HttpDoor(caller_of=caller_of, body_of=body_of, may_decide=may_decide, call=calls.call)
    )
    listener = listen(HOST, 0, source="test", remedy="")
    server = GuestServer(Starlette(routes=[Mount("/api", app=api)]))
    await server.open(listener)
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    places.announce({"doors": {"switchboard": url}, "simulators": {}})
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            yield Door(butler=butler, post=post, http=http, tokens=tokens, data_dir=places.root)
    finally:
        await server.close()


# --- HTTP ------------------------------------------------------------------------------------------------------------


async def test_a_person_lists_looks_and_approves(door: Door):
    told = await door.butler.call("send", GENERAL, to="ann")
    status, listed = await door.ask("GET", "")
    assert (status, [action["id"] for action in listed["actions"]]) == (200, [told["action_id"]])
    _, shown = await door.ask("GET", f"/{told['action_id']}")
    assert shown["action"]["tool_args"]["to"] == "ann"
    assert (await door.ask("GET", "/count"))[1]["pending"] == 1
    status, approved = await door.ask("POST", f"/{told['action_id']}/approve", {"reason": "fine"})
    assert (status, approved["action"]["status"]) == (200, "executed")
    assert (approved["action"]["decided_by"], approved["action"]["decision_reason"]) == ("operator", "fine")
    assert len(door.post.calls) == 1
    status, refused = await door.ask("POST", f"/{told['action_id']}/reject", {})
    assert (status, refused["error"]["class"]) == (422, "validation_error")
    assert refused["error"]["message"] == "action_id: the action is not pending: it is executed by operator"


async def test_pages_and_states(door: Door):
    for n in range(3):
        await door.butler.call("send", GENERAL, to=str(n))
    _, first = await door.ask("GET", "?limit=2&status=any")
    _, second = await door.ask("GET", f"?limit=2&status=any&cursor={first['next_cursor']}")
    assert (len(first["actions"]), len(second["actions"]), second["next_cursor"]) == (2, 1, None)
    assert (await door.ask("GET", "?status=executed"))[1]["actions"] == []
    assert (await door.ask("GET", "?status=asleep"))[0] == 422
    assert (await door.ask("GET", "?limit=0"))[0] == 422


async def test_rules_by_http(door: Door):
    rule = {"tool_name": "send", "arg_constraints": {"to": {"type": "exact", "value": "ann"}}, "max_uses": 1}
    status, created = await door.ask("POST", "/rules", rule)
    assert (status, created["rule"]["created_by"]) == (201, "operator")
    assert (await door.butler.call("send", GENERAL, to="ann"))["status"] == "ok"
    told = await door.butler.call("send", GENERAL, to="ann")
    status, made = await door.ask("POST", "/rules", {"action_id": told["action_id"]})
    assert (status, made["rule"]["arg_constraints"]["text"]) == (201, {"type": "any"})
    _, listed = await door.ask("GET", "/rules")
    assert [rule["id"] for rule in listed["rules"]] == [made["rule"]["id"], created["rule"]["id"]]
    assert (await door.ask("DELETE", f"/rules/{made['rule']['id']}"))[1]["rule"]["active"] is False
    assert len((await door.ask("GET", "/rules"))[1]["rules"]) == 1
    assert len((await door.ask("GET", "/rules?active_only=false"))[1]["rules"]) == 2
    assert (await door.ask("GET", f"/rules/{created['rule']['id']}"))[1]["rule"]["use_count"] == 1


@pytest.mark.parametrize("name", ["general", "telegram"])
async def test_only_a_person_decides(door: Door, name: str):
    told = await door.butler.call("send", GENERAL, to="ann")
    attempts: list[tuple[str, str, Any]] = [
        ("POST", f"/{told['action_id']}/approve", {}),
        ("POST", f"/{told['action_id']}/reject", {}),
        ("POST", "/rules", {"tool_name": "send"}),
        ("DELETE", f"/rules/{NOBODY}", None),
    ]
    for verb, path, body in attempts:
        assert (await door.ask(verb, path, body, name=name))[0] == 403
    assert (await door.ask("GET", "", name=name))[0] == (200 if name == "general" else 403)
    assert door.post.calls == []


async def test_what_is_not_there_is_404_and_what_is_wrong_422(door: Door):
    assert (await door.ask("GET", f"/{NOBODY}"))[0] == 404
    assert (await door.ask("POST", f"/{NOBODY}/approve", {}))[0] == 404
    assert (await door.ask("DELETE", f"/rules/{NOBODY}"))[0] == 404
    status, answer = await door.ask("GET", "?butler=finance")
    assert (status, answer["error"]["message"]) == (
        404,
        "butler: approvals are off for finance: add [modules.approvals] to its butler.toml and start it again",
    )
    status, answer = await door.ask("POST", "/rules", {"tool_name": "sing"})
    assert (status, "is not gated here" in answer["error"]["message"]) == (422, True)
    wrong: list[Any] = [[], {"decided_by": "ann"}, {"reason": 7}]
    for body in wrong:
        assert (await door.ask("POST", f"/{NOBODY}/approve", body))[0] == 422
    assert (await door.ask("GET", "/nonsense"))[0] == 422


async def test_a_butler_that_is_away_is_503(door: Door):
    status, answer = await door.ask("GET", "?butler=elsewhere")
    assert (status, answer["error"]["class"], answer["error"]["retry_after_seconds"]) == (503, "target_unavailable", 3)


# --- command line ----------------------------------------------------------------------------------------------------


async def test_a_person_decides_from_the_command_line(door: Door):
    assert (await door.command("list"))[1] == "no actions\n"
    yes, no = await door.butler.call("send", GENERAL, to="ann"), await door.butler.call("pay", GENERAL, amount=5)
    assert [action["id"] for action in (await door.answer("list"))["actions"]] == [no["action_id"], yes["action_id"]]
    code, output, _ = await door.command("list", "--limit", 1)
    assert (code, no["action_id"] in output) == (0, True)
    where = f"--data-dir {door.data_dir}"
    assert f"more: butlers approvals list {where} --limit 1 --cursor {no['action_id']}" in output
    code, output, _ = await door.command("show", yes["action_id"])
    assert (code, 'send {"to": "ann"' in output) == (0, True)
    assert f"let it happen: butlers approvals approve {where} {yes['action_id']}\n" in output
    assert f"refuse it:     butlers approvals reject {where} {yes['action_id']}\n" in output
    code, output, _ = await door.command("approve", yes["action_id"], "--reason", "fine")
    assert (code, output.startswith("executed: send(")) == (0, True)
    assert (await door.answer("reject", no["action_id"]))["action"]["status"] == "rejected"
    assert [action["id"] for action in (await door.answer("list", "--status", "executed"))["actions"]] == [
        yes["action_id"]
    ]
    assert (len(door.post.calls), door.post.paid) == (1, [])


async def test_exit_codes_say_what_went_wrong(door: Door):
    told = await door.butler.call("pay", GENERAL, amount=5)
    door.post.failures = [RuntimeError("broken")]
    code, output, _ = await door.command("approve", told["action_id"])
    assert (code, "it failed: internal_error" in output) == (1, True)
    code, _, complaint = await door.command("approve", told["action_id"])
    assert (code, "nothing was changed: the action is executed by operator already" in complaint) == (2, True)
    assert (await door.command("show", "nonsense"))[0] == 2
    assert (await door.command("show", NOBODY))[0] == 2
    assert (await door.command("rules", "create", "send", "--arg", "nonsense"))[0] == 2
    assert (await door.command("list", "--butler", "elsewhere"))[0] == 4


async def test_rules_from_the_command_line(door: Door):
    options = ("--arg", "to=exact:7", "--arg", "text=any", "--arg", "idempotency_key=json:null", "--max-uses", 2)
    rule = (await door.answer("rules", "create", "send", *options))["rule"]
    assert rule["arg_constraints"] == {
        "to": {"type": "exact", "value": "7"},
        "text": {"type": "any"},
        "idempotency_key": {"type": "exact", "value": None},
    }
    assert (await door.butler.call("send", GENERAL, to="7"))["status"] == "ok"
    code, output, _ = await door.command("rules", "list")
    assert (code, "used 1 of 2" in output, 'to=exact:"7", text=any' in output) == (0, True, True)
    told = await door.butler.call("send", GENERAL, to="ann")
    made = (await door.answer("rules", "from-action", told["action_id"], "--expires", "2027-01-01T00:00:00Z"))["rule"]
    assert made["expires_at"] == "2027-01-01T00:00:00Z"
    code, output, _ = await door.command("rules", "revoke", made["id"])
    assert (code, output.splitlines()[0]) == (0, f"rule {made['id']}: revoked")
    assert (await door.command("rules", "show", made["id"]))[1] == output
    assert len((await door.answer("rules", "list"))["rules"]) == 1
    assert len((await door.answer("rules", "list", "--all"))["rules"]) == 2


async def test_what_others_wrote_cannot_move_the_cursor_of_a_terminal(door: Door, desk: Desk):
    told = await door.butler.call("send", GENERAL, to="ann")
    await desk.database.execute("update general.pending_actions set summary = $1", "to bob\x1b[2K\rto ann")
    _, output, _ = await door.command("list")
    assert "to bob\N{REPLACEMENT CHARACTER}[2K\N{REPLACEMENT CHARACTER}to ann" in output
    assert (await door.answer("show", told["action_id"]))["action"]["summary"] == "to bob\x1b[2K\rto ann"
