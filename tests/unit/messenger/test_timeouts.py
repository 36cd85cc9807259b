from __future__ import annotations

from butlers.messenger.execution import ExecutionPolicy
from butlers.reliability.lease import LeasePolicy
from butlers.reliability.retry import RetryPolicy


def policy(**timeouts: float) -> ExecutionPolicy:
    return ExecutionPolicy(retry=RetryPolicy(), timeout_s=timeouts, max_in_flight=1, lease=LeasePolicy())


def test_a_channel_without_its_own_timeout_takes_the_default() -> None:
    assert (
        policy(telegram=1, default=2).timeout_for("telegram"),
        policy(telegram=1, default=2).timeout_for("email"),
    ) == (1, 2)
    assert policy(telegram=1).timeout_for("email") == 30
