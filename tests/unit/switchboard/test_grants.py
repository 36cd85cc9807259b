"""Which endpoints a grant covers."""

from __future__ import annotations

import pytest

from butlers.butler.identity import Caller, Grant
from butlers.operations.operation import Role
from butlers.switchboard.ingress.gate import may_report_for


@pytest.mark.parametrize(
    ("granted", "covered"), [(None, True), ("bot:mine", True), ("BOT:Mine", True), ("bot:other", False), ("", False)]
)
def test_a_grant_without_an_endpoint_covers_all_and_an_empty_one_none(granted: str | None, covered: bool) -> None:
    caller = Caller(name="c", role=Role.CONNECTOR, grants=(Grant(channel="telegram", endpoint=granted),))
    assert may_report_for(caller, "telegram", "bot:mine") is covered
