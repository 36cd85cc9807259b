"""Messenger's public door, as Switchboard and others would use it: envelopes to hand in, and what became of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from butlers.butler.identity import OPERATOR, Grant
from butlers.daemon.settings import shipped_roster
from butlers.daemon.simulation import Simulated, simulated_environment
from butlers.daemon.system import System
from butlers.ids import Uuid7Factory
from butlers.operations.operation import Role
from tests.system import OWNER_CHAT_ID, RunningSystem

MCP_HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
MESSENGER_TABLES = ("delivery_requests", "delivery_attempts", "delivery_receipts", "route_inbox")


def changed_roster(tmp_path: Path, butler: str, *changes: tuple[str, str]) -> Path:
    """A copy of the shipped roster in which the butler.toml of one butler reads differently."""
    copy = tmp_path / "roster"
    if not copy.exists():
        shutil.copytree(shipped_roster(), copy)
    path = copy / butler / "butler.toml"
    text = path.read_text(encoding="utf-8")
    for pattern, replacement in changes:
        text, times = re.subn(pattern, replacement, text, count=1, flags=re.MULTILINE)
        assert times == 1, f"{pattern} is not in {path}"
    path.write_text(text, encoding="utf-8")
    return copy


def quick(tmp_path: Path, *more: tuple[str, str]) -> Path:
    """A roster whose Messenger does not wait long before it tries again."""
    both = ((r"base_delay_s = 1\.0", "base_delay_s = 0.05"), email_retries(0.05))
    return changed_roster(tmp_path, "messenger", *both, *more)


def email_retries(base_delay_s: float, *, jitter: float = 0.3) -> tuple[str, str]:
    """A change of the roster: mails are tried again after so long."""
    values = f"max_attempts = 8\nbase_delay_s = {base_delay_s}\nmax_delay_s = 3600.0\njitter = {jitter}"
    return r"^\[delivery\.timeout_s\]", f"[delivery.retry.email]\n{values}\n\n[delivery.timeout_s]"


def time_limit(**seconds: float) -> tuple[str, str]:
    """A change of the roster: how long an attempt on a channel may take."""
    lines = "\n".join(f"{channel} = {limit}" for channel, limit in seconds.items())
    return r"^\[delivery\.timeout_s\]", f"[delivery.timeout_s]\n{lines}"


def certainty(**policies: str) -> tuple[str, str]:
    """A change of the roster: what follows when an attempt on a channel may have arrived."""
    lines = "\n".join(f'{channel} = "{policy}"' for channel, policy in policies.items())
    return r"^\[delivery\.certainty\]", f"[delivery.certainty]\n{lines}"


@asynccontextmanager
async def beside(running: RunningSystem, names: Sequence[str], **ports: int) -> AsyncIterator[RunningSystem]:
    """Another process's system, as far as one process can hold it: the same database, data directory and providers,
    but tools, memory, leases and wire log of its own.
    """
    settings = running.settings.model_copy(update={"ports": running.settings.ports | ports})
    system = System(
        settings=settings,
        roster=running.roster,
        names=names,
        environment=simulated_environment(Simulated({"telegram", "mail"}), running.roster, {}),
        clock=running.clock,
        new_id=Uuid7Factory(running.clock),
    )
    await system.start()
    try:
        yield replace(running, system=system, settings=settings)
    finally:
        await system.stop()


async def forget(running: RunningSystem) -> None:
    """Empty what earlier tests left in a system they share: deliveries, chats, mail and faults."""
    await forget_deliveries(running)
    for table in ("throttles", "recipient_rules", "admission_outcomes", "pending_actions", "approval_rules"):
        await running.database.execute(f"delete from messenger.{table}")
    await running.database.execute("delete from messenger.rate_buckets where name <> 'lock'")
    await running.database.execute(
        "update messenger.channel_states set state = 'closed', generation = generation + 1, consecutive_failures = 0,"
        " probes_out = 0, probe_successes = 0, trip_reason = null, tripped_at = null, probe_at = null,"
        " stance = 'normal'"
    )
    await running.control("POST", "/reset")
    response = await running.http.post(f"{running.mail.control_url}/reset")
    assert response.status_code == 204, response.text


async def forget_deliveries(running: RunningSystem) -> None:
    while await _deliveries_left(running):
        pass


async def _deliveries_left(running: RunningSystem) -> bool:
    """Delete them; true when one was written to in between, by an attempt that was still under way."""
    # Deleted and not truncated: that would wait for, and hold up, whatever reads the tables at the moment.
    try:
        for table in ("delivery_receipts", "delivery_attempts", "delivery_dead_letter", "delivery_requests"):
            await running.database.execute(f"delete from messenger.{table}")
    except asyncpg.ForeignKeyViolationError:
        return True
    return False


def lineage(running: RunningSystem, **fields: Any) -> dict[str, Any]:
    """The request that is answered; `fields` replace its own, None takes one away."""
    context = {
        "request_id": str(Uuid7Factory(running.clock)()),
        "received_at": running.clock.now().isoformat(),
        "source_channel": "telegram",
        "source_endpoint_identity": "bot",
        "source_sender_identity": str(OWNER_CHAT_ID),
        "source_thread_identity": str(OWNER_CHAT_ID),
    } | fields
    return {name: value for name, value in context.items() if value is not None}


def wish(message: str = "hello", **fields: Any) -> dict[str, Any]:
    """A notify.v1 of the health butler; `delivery` fields and top-level fields alike are given by name."""
    top = {"origin_butler", "request_context", "contact_id", "idempotency_key", "not_after", "priority"}
    delivery = {"intent": "send", "channel": "telegram", "message": message}
    delivery |= {name: value for name, value in fields.items() if name not in top}
    document = {"schema_version": "notify.v1", "origin_butler": "health", "delivery": delivery}
    return document | {name: value for name, value in fields.items() if name in top}


def route(running: RunningSystem, notify: Any, **context: Any) -> dict[str, Any]:
    """The route.v1 that carries a notify.v1, as Switchboard makes it."""
    origin = notify.get("origin_butler") if isinstance(notify, Mapping) else None
    carried = {"notify_request": notify, "authenticated_origin": origin} | context
    request = notify.get("request_context") if isinstance(notify, Mapping) else None
    complete = isinstance(request, Mapping) and {"request_id", "source_channel", "received_at"} <= request.keys()
    return {
        "schema_version": "route.v1",
        "request_context": lineage(running, **(request if complete and request else {})),
        "input": {"prompt": "Execute outbound delivery request through Messenger.", "context": carried},
        "subrequest": {"subrequest_id": str(uuid4()), "segment_id": f"notify-{uuid4()}"},
        "target": {"butler": "messenger"},
    }


async def official_call(
    running: RunningSystem, butler: str, tool: str, arguments: dict[str, Any], **as_whom: Any
) -> dict[str, Any]:
    """One tool call by the official client; `as_whom` is the caller, the token or the path."""
    async with running.mcp(butler, **as_whom) as client:
        result = await client.call_tool(tool, arguments)
        assert isinstance(result.structured_content, dict), result
        return result.structured_content


async def call(
    running: RunningSystem,
    butler: str,
    tool: str,
    arguments: dict[str, Any],
    *,
    caller: str | None = OPERATOR,
    token: str | None = None,
    path: str = "/mcp",
) -> dict[str, Any]:
    """The same call at the same door, without the client's handshake: a tenth of the work where there are many."""
    secret = token or (running.token(caller) if caller else None)
    response = await running.http.post(
        running.url(butler, path),
        json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}},
        headers=MCP_HEADERS | ({"Authorization": f"Bearer {secret}"} if secret else {}),
    )
    content = response.json()["result"]["structuredContent"]
    assert isinstance(content, dict), response.text
    return content


async def execute(running: RunningSystem, envelope: dict[str, Any], **as_whom: Any) -> dict[str, Any]:
    return await call(running, "messenger", "route.execute", envelope, **({"caller": "switchboard"} | as_whom))


async def official_execute(running: RunningSystem, envelope: dict[str, Any], **as_whom: Any) -> dict[str, Any]:
    return await official_call(running, "messenger", "route.execute", envelope, **({"caller": "switchboard"} | as_whom))


async def deliver(running: RunningSystem, notify: dict[str, Any]) -> dict[str, Any]:
    """What Messenger answers to a notify.v1 from Switchboard: its notify_response.v1."""
    response = await execute(running, route(running, notify))
    answer: dict[str, Any] = response["result"]["notify_response"]
    assert (response["status"], response.get("error")) == (answer["status"], answer.get("error")), response
    return answer


async def refusal(running: RunningSystem, notify: Any, **context: Any) -> dict[str, Any]:
    """The error with which Messenger refuses it; nothing may have been stored."""
    before = await stored(running)
    response = await execute(running, route(running, notify, **context))
    assert response["status"] == "error", response
    assert await stored(running) == before
    error: dict[str, Any] = response["error"]
    assert (error["class"], error["retryable"]) == ("validation_error", False)
    return error


async def stored(running: RunningSystem) -> dict[str, int]:
    """How many rows each of Messenger's tables holds."""
    return {
        table: await running.database.fetchval(f"select count(*) from messenger.{table}") for table in MESSENGER_TABLES
    }


async def rows(running: RunningSystem) -> list[dict[str, Any]]:
    """All deliveries, oldest first."""
    return [dict(row) for row in await running.database.fetch("select * from messenger.delivery_requests order by id")]


async def attempts(running: RunningSystem, delivery_id: str | UUID | None = None) -> list[dict[str, Any]]:
    query = (
        "select * from messenger.delivery_attempts where $1::uuid is null or delivery_id = $1"
        " order by started_at, attempt_number"
    )
    return [dict(row) for row in await running.database.fetch(query, delivery_id)]


async def mails(running: RunningSystem) -> list[dict[str, Any]]:
    """What the mail server accepted."""
    response = await running.http.get(f"{running.mail.control_url}/accepted")
    accepted: list[dict[str, Any]] = response.json()["accepted"]
    return accepted


async def mail_fault(running: RunningSystem, **fault: Any) -> None:
    response = await running.http.post(f"{running.mail.control_url}/faults", json={"server": "smtp", **fault})
    assert response.status_code == 201, response.text


async def fault(running: RunningSystem, kind: str, **more: Any) -> None:
    """Let the next sendMessage meet a fault."""
    await running.control("POST", "/faults", {"method": "sendMessage", "kind": kind, **more})


async def request_said(running: RunningSystem, text: str) -> tuple[str, dict[str, Any]]:
    """Somebody writes by Telegram: the request on record, and the message."""
    said = await running.says(text)

    async def recorded() -> Any:
        query = "select request_id from switchboard.message_inbox where normalized_text = $1"
        return await running.database.fetchval(query, text)

    return str(await running.until(recorded)), said


async def request_mailed(running: RunningSystem, text: str, *, sender: str, headers: dict[str, str]) -> str:
    """A mail comes in as a connector would hand it in: the request on record."""
    envelope = running.envelope(text, external_event_id=headers["Message-ID"], external_thread_id="thread")
    envelope["source"] = {"channel": "email", "provider": "imap", "endpoint_identity": "butler@butlers.example"}
    envelope["sender"] = {"identity": sender}
    envelope["payload"]["raw"] = {"headers": headers}
    token = running.issue_token(f"connector.imap-{uuid4().hex[:8]}", Role.CONNECTOR, Grant(channel="email"))
    response = await running.http.post(
        running.url(path="/api/ingest"), json=envelope, headers={"Authorization": f"Bearer {token}"}
    )
    assert response.status_code == 202, response.text
    request_id: str = response.json()["request_id"]
    return request_id


async def hurry(running: RunningSystem) -> None:
    """Let everything that waits for its time be due: retries, and windows that providers asked for."""
    await running.database.execute("delete from messenger.throttles")
    await running.database.execute("update messenger.delivery_requests set next_attempt_at = now()")


async def sends(running: RunningSystem) -> int:
    """How many sendMessage calls Telegram saw, whatever it answered."""
    report = await running.control("GET", "/requests?method=sendMessage")
    return len(report["requests"])
