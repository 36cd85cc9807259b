"""What people read, what is refused, and what can be stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from butlers.butler.approvals import PendingAction, refusal
from butlers.butler.approvals.runner import storable, with_key
from butlers.butler.approvals.tools import summary_of
from butlers.butler.core_tools import KeyArguments, NotifyArguments
from butlers.butler.toolbox import Tool
from butlers.contracts.envelope import Value
from butlers.operations.approvals import Constraint
from butlers.operations.operation import ADDS, Result

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def action(**changes: Any) -> PendingAction:
    fields: dict[str, Any] = {
        "id": UUID(int=1),
        "tool_name": "send",
        "tool_args": {},
        "summary": "send()",
        "status": "pending",
        "needs_person": False,
        "subject_id": None,
        "requested_by": "general",
        "requested_role": "butler",
        "requested_at": NOW,
        "expires_at": NOW + timedelta(hours=1),
    }
    return PendingAction(**fields | changes)


def tool(arguments: type[Value]) -> Tool:
    async def handler(_caller: Any, _arguments: Any) -> dict[str, Any]:
        return {}

    return Tool(name="send", description="Send.", arguments=arguments, returns=Result, hints=ADDS, handler=handler)


def test_a_decision_is_refused_with_the_reason():
    assert refusal(action(), NOW) is None
    late = refusal(action(expires_at=NOW), NOW)
    assert late is not None
    assert "it expired at 2026-05-01T12:00:00" in late.message
    decided = refusal(action(status="rejected", decided_by="ann"), NOW)
    assert decided is not None
    assert decided.message == "action_id: the action is not pending: it is rejected by ann"


def test_a_summary_shows_arguments_and_cuts_long_ones():
    assert summary_of("notify", {"recipient": "7", "message": "Hi\n", "subject": None}) == (
        'notify(recipient="7", message="Hi\\n")'
    )
    long = summary_of("notify", {f"argument_{n}": "x" * 500 for n in range(10)})
    assert len(long) == 300
    assert long.endswith("…")


def test_a_tool_that_knows_keys_gets_the_actions_and_keeps_its_own():
    identity = UUID(int=5)
    assert with_key(tool(NotifyArguments), {"message": "x"}, identity)["idempotency_key"] == str(identity)
    assert with_key(tool(NotifyArguments), {"idempotency_key": None}, identity)["idempotency_key"] == str(identity)
    assert with_key(tool(NotifyArguments), {"idempotency_key": "mine"}, identity)["idempotency_key"] == "mine"
    assert with_key(tool(KeyArguments), {"key": "x"}, identity) == {"key": "x"}


@pytest.mark.parametrize("answer", [{"text": "a\x00b"}, {"text": "\ud800"}, {"thing": object()}])
def test_an_answer_that_cannot_be_stored_still_ends_the_action(answer: dict[str, Any]):
    assert storable({"result": answer}) == {"result": {"unreadable": True}}


def test_an_answer_is_stored_as_json():
    assert storable({"result": {"at": NOW, "id": UUID(int=1)}}) == {
        "result": {"at": "2026-05-01T12:00:00Z", "id": str(UUID(int=1))}
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "exact"},
        {"type": "pattern"},
        {"type": "pattern", "value": 7},
        {"type": "any", "value": 1},
        {"type": "x"},
    ],
)
def test_a_constraint_that_means_nothing_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match="Constraint"):
        Constraint.model_validate(wrong)


def test_exact_null_is_a_constraint():
    assert Constraint.model_validate({"type": "exact", "value": None}).to_constraint() == {
        "type": "exact",
        "value": None,
    }
