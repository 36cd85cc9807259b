"""Each channel has its own patience."""

from __future__ import annotations

from pathlib import Path

from butlers.messenger.attempt import ChannelPolicy
from butlers.messenger.config import DeliverySection
from butlers.roster import load_butler

SHIPPED = Path(__file__).parents[3] / "roster" / "messenger"


def section(**timeouts: float) -> DeliverySection:
    return DeliverySection.model_validate({"timeout_s": timeouts})


def timeout_s(given: DeliverySection, channel: str) -> float:
    return ChannelPolicy.of(given, channel).timeout_s


def test_a_channel_without_its_own_timeout_takes_the_default() -> None:
    given = section(telegram=1.0, default=2.0)
    assert (timeout_s(given, "telegram"), timeout_s(given, "sms")) == (1, 2)
    assert timeout_s(section(telegram=1.0), "sms") == 30


def test_naming_one_channel_leaves_the_others_their_own() -> None:
    assert timeout_s(section(telegram=1.0), "email") == 45


def test_the_shipped_policy_is_patient_with_mail_and_sits_outages_of_chats_out() -> None:
    delivery = load_butler(SHIPPED).delivery
    telegram, email, other = (ChannelPolicy.of(delivery, name) for name in ("telegram", "email", "sms"))
    assert (telegram.timeout_s, email.timeout_s, other.timeout_s) == (15, 45, 30)
    assert (telegram.certainty, email.certainty, other.certainty) == (
        "never_duplicate",
        "never_lose",
        "never_duplicate",
    )
    assert (telegram.retry.max_attempts, telegram.retry.initial_delay, telegram.retry.max_delay) == (14, 1, 120)
    assert (email.retry.max_attempts, email.retry.initial_delay, email.retry.max_delay) == (8, 60, 3600)
    assert telegram.retry.jitter == email.retry.jitter == 0.3
