"""What a dry run says would happen, and what happens: told apart in the same words."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from butlers.switchboard.notify import FIRST_PAUSE_S
from tests.scenarios.messenger_door import attempts, call
from tests.scenarios.messenger_time import advance, tool
from tests.system import RunningSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was said would happen, or what happened."""

    outcome: str
    error_class: str | None = None
    rule: str | None = None
    retry_after: float | None = None
    target: str | None = None


def foretold(answer: dict[str, Any], notify: dict[str, Any]) -> Verdict:
    reason = (answer["reasons"] or [{}])[0]
    refused = answer["outcome"] == "rejected"
    wait = reason.get("retry_after_seconds")
    if refused and ("idempotency_key" in notify or "request_context" in notify):
        wait = max(FIRST_PAUSE_S, wait or 0.0)  # Switchboard, which may ask again by itself, never hurries more
    return Verdict(
        outcome=answer["outcome"],
        error_class=reason.get("class"),
        rule=reason.get("rule") if refused else None,
        retry_after=wait,
        target=answer["target_identity"] if answer["would_be_admitted"] else None,
    )


async def dry_run(running: RunningSystem, notify: Any) -> dict[str, Any]:
    return await tool(running, "dry_run", notify_request=notify)


async def dispatch(running: RunningSystem, notify: dict[str, Any]) -> dict[str, Any]:
    """Ask for it as its butler does."""
    caller = notify["origin_butler"] or "health"
    return await call(running, "switchboard", "notify.dispatch", notify, caller=caller)


async def happened(running: RunningSystem, notify: dict[str, Any]) -> Verdict:
    """Hand it in for real; whatever is taken on may still wait for its circuit."""
    query = "select id, target_identity, status from messenger.delivery_requests where id <> all($1::uuid[])"
    known = [row["id"] for row in await running.database.fetch("select id from messenger.delivery_requests")]
    task = asyncio.create_task(dispatch(running, notify))

    async def settled() -> bool:
        return task.done() or bool(await running.database.fetchrow(query, known))

    await running.until(settled)
    made = await running.database.fetchrow(query, known)
    if made is None:
        return await _answered(running, notify, await task)
    if made["status"].startswith("pending_"):
        await task
        return Verdict(outcome=made["status"])
    await _ended(running, made["id"])
    await task
    if await _never_left(running, made["id"]):
        return Verdict(outcome="invalid", error_class="validation_error")
    return Verdict(outcome="admitted", target=made["target_identity"])


async def _answered(running: RunningSystem, notify: dict[str, Any], response: dict[str, Any]) -> Verdict:
    if response["status"] == "ok":
        assert response["delivery"]["deduplicated"] is True
        return Verdict(outcome="deduplicated")
    error = response["error"]
    if error["class"] == "validation_error":
        outcome = "suppressed" if "is suppressed since" in error["message"] else "invalid"
        return Verdict(outcome=outcome, error_class="validation_error")
    rule = await running.database.fetchval("select rule from messenger.admission_outcomes where outcome = 'rejected'")
    return Verdict(
        outcome="rejected", error_class=error["class"], rule=rule, retry_after=error.get("retry_after_seconds")
    )


async def _ended(running: RunningSystem, delivery_id: UUID) -> None:
    """Whatever its circuit was, let it be tried."""
    query = "select terminal_at is not null from messenger.delivery_requests where id = $1"

    async def over() -> bool:
        await running.database.execute("update messenger.channel_states set state = 'closed', probe_at = null")
        advance(running, 0.0)
        return bool(await running.database.fetchval(query, delivery_id))

    await running.until(over)


async def _never_left(running: RunningSystem, delivery_id: UUID) -> bool:
    """The channel refused it without asking the provider."""
    (attempt,) = await attempts(running, delivery_id)
    refused: bool = (attempt["provider_response"] or {}).get("phase") == "composing"
    assert not refused or attempt["error_class"] == "validation_error"
    return refused
