"""The `[delivery]` part of butler.toml: what it adds to the defaults, and what it refuses."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from uuid import UUID

import pytest

from butlers.channels.adapter import NotSent
from butlers.channels.channel import Breaker, Outbound
from butlers.errors import ConfigurationError, TargetUnavailable
from butlers.messenger import config
from butlers.messenger.attempt import ChannelPolicy, Ended, Settlement
from butlers.messenger.config import DeliverySection, RetrySection
from butlers.messenger.deliveries import learned
from butlers.reliability import circuit_breaker
from butlers.reliability.error_budget import BudgetPolicy
from butlers.reliability.retry import RetryPolicy
from butlers.roster import load_butler

from .given import START, claimed_delivery, row

OUTAGE_RETRY = RetryPolicy(max_attempts=14, initial_delay=1.0, max_delay=120.0, jitter=0.3)
EMAIL_RETRY = RetryPolicy(max_attempts=8, initial_delay=60.0, max_delay=3600.0, jitter=0.3)
MINIMUM = """
[butler]
name = "messenger"
port = 40104
description = "Outbound deliveries"

[butler.db]
schema = "messenger"
"""


def loaded(folder: Path, text: str = "") -> DeliverySection:
    (folder / "butler.toml").write_text(MINIMUM + text, encoding="utf-8")
    return load_butler(folder).delivery


def policies(section: DeliverySection, *channels: str) -> list[ChannelPolicy]:
    return [ChannelPolicy.of(section, channel) for channel in channels]


def test_without_a_word_everything_is_the_default(tmp_path: Path) -> None:
    assert loaded(tmp_path) == DeliverySection()
    telegram, sms, email, pigeon = policies(DeliverySection(), "telegram", "sms", "email", "pigeon")
    assert telegram.retry == sms.retry == OUTAGE_RETRY
    assert pigeon.retry == RetrySection().policy(), "what the source documents say, for all others"
    assert email.retry == EMAIL_RETRY


def test_a_table_that_names_one_channel_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    section = loaded(
        tmp_path,
        """
        [delivery.limits.channel_per_minute]
        "telegram.bot" = 5.0
        [delivery.retry.sms]
        max_attempts = 2
        [delivery.timeout_s]
        sms = 3.0
        [delivery.certainty]
        telegram = "ask"
        """,
    )
    assert section.limits.channel_per_minute["telegram.bot"] == 5
    assert section.limits.channel_per_minute["email.bot"] == 20
    telegram, sms, email, chat = policies(section, "telegram", "sms", "email", "chat")
    assert (sms.retry.max_attempts, email.retry) == (2, EMAIL_RETRY)
    assert (sms.timeout_s, email.timeout_s, chat.timeout_s) == (3, 45, 30)
    assert (telegram.certainty, email.certainty) == ("ask", "never_lose")
    assert chat.certainty == "never_duplicate"


def test_the_default_of_a_table_may_be_changed_too(tmp_path: Path) -> None:
    section = loaded(
        tmp_path,
        """
        [delivery.certainty]
        default = "never_lose"
        [delivery.timeout_s]
        default = 7.0
        """,
    )
    chat, telegram = policies(section, "chat", "telegram")
    assert (chat.certainty, telegram.certainty) == ("never_lose", "never_duplicate")
    assert (chat.timeout_s, telegram.timeout_s) == (7, 15)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[delivery.limits]\nmax_in_flight = 0", "delivery.limits.max_in_flight"),
        ("[delivery.limits]\nglobal_per_minute = 0.0", "delivery.limits.global_per_minute"),
        ("[delivery.limits]\nglobal_per_minute = inf", "delivery.limits.global_per_minute"),
        ("[delivery.limits]\nrecipient_per_minute = 0.5", "delivery.limits.recipient_per_minute"),
        ('[delivery.limits.channel_per_minute]\n"sms.bot" = 0.5', "delivery.limits.channel_per_minute"),
        ("[delivery.timeout_s]\ntelegram = inf", "delivery.timeout_s.telegram"),
        ("[delivery.retry.email]\nbase_delay_s = inf", "delivery.retry.email.base_delay_s"),
        ("[delivery]\ndedupe_retention_days = inf", "delivery.dedupe_retention_days"),
        ("[delivery.limits]\nrecipient_per_minute = -1.0", "delivery.limits.recipient_per_minute"),
        ("[delivery.limits]\nreply_multiplier = 0.5", "delivery.limits.reply_multiplier"),
        ('[delivery.limits.channel_per_minute]\n"telegram.bot" = 0.0', "delivery.limits.channel_per_minute"),
        ("[delivery.breaker]\nfailure_threshold = 0", "delivery.breaker.failure_threshold"),
        ("[delivery.breaker]\nrecovery_timeout_s = 0.0", "delivery.breaker.recovery_timeout_s"),
        ("[delivery.breaker.email]\nfailure_threshold = 0", "delivery.breaker.email.failure_threshold"),
        ("[delivery.breaker.email]\nthreshold = 3", "delivery.breaker.email.threshold"),
        ("[delivery.breaker]\nthreshold = 3", "delivery.breaker.threshold"),
        ("[delivery.breaker.telegarm]\nfailure_threshold = 3", "delivery.breaker"),
        ("[delivery.breaker.default]\nfailure_threshold = 3", "delivery.breaker"),
        ("[delivery.retry.email]\nmax_attempts = 0", "delivery.retry.email.max_attempts"),
        ("[delivery.retry.default]\njitter = 1.5", "delivery.retry.default.jitter"),
        ("[delivery.timeout_s]\ntelegram = 0.0", "delivery.timeout_s"),
        ("[delivery.timeout_s]\ntelegram = nan", "delivery.timeout_s.telegram"),
        ('[delivery.certainty]\ntelegram = "sometimes"', "delivery.certainty.telegram"),
        ("[delivery.error_budget]\nobjective = 1.0", "delivery.error_budget.objective"),
        ("[delivery.error_budget]\nrelax_below = 7.0", "delivery.error_budget"),
        ("[delivery.error_budget]\nshort_window_s = 7200.0", "delivery.error_budget"),
        ("[delivery]\nmax_concurrent_attempts = 0", "delivery.max_concurrent_attempts"),
        ("[delivery]\ndedupe_retention_days = 0.0", "delivery.dedupe_retention_days"),
        ("[delivery]\nmax_replays = -1", "delivery.max_replays"),
        ('[delivery]\ntell_owner = "yes"', "delivery.tell_owner"),
        ("[delivery]\nspeed = 3", "delivery.speed"),
        ("[delivery.limits]\nper_second = 3.0", "delivery.limits.per_second"),
        ('[delivery.recipients]\ndeny = "telegram:7"', "delivery.recipients.deny"),
    ],
)
def test_a_mistake_names_its_place_and_stops_the_start(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, text)
    assert caught.value.key == key
    assert caught.value.remedy


def test_the_words_of_the_file_are_the_values_the_code_decides_by(tmp_path: Path) -> None:
    section = loaded(
        tmp_path,
        """
        [delivery.limits]
        max_in_flight = 3
        global_per_minute = 4.0
        recipient_per_minute = 5.0
        reply_multiplier = 6.0
        [delivery.breaker]
        failure_threshold = 7
        recovery_timeout_s = 8.0
        probe_limit = 9
        success_threshold = 10
        [delivery.recipients]
        allow = ["telegram:*"]
        deny = ["telegram:7"]
        [delivery.error_budget]
        objective = 0.5
        """,
    )
    limits, recipients = section.limits, section.recipients
    assert (limits.max_in_flight, limits.global_per_minute) == (3, 4)
    assert (limits.recipient_per_minute, limits.reply_multiplier) == (5, 6)
    assert (recipients.allow, recipients.deny) == (["telegram:*"], ["telegram:7"])
    breaker = section.breaker.policy("telegram.bot")
    assert (breaker.failure_threshold, breaker.recovery_timeout) == (7, 8)
    assert (breaker.probe_limit, breaker.success_threshold) == (9, 10)
    assert BudgetPolicy(**section.error_budget.model_dump()).objective == 0.5


def test_a_breaker_opens_earlier_for_one_channel(tmp_path: Path) -> None:
    section = loaded(
        tmp_path,
        """
        [delivery.breaker]
        failure_threshold = 4
        recovery_timeout_s = 8.0
        [delivery.breaker.email]
        failure_threshold = 2
        """,
    )
    (email, telegram) = (section.breaker.policy(channel) for channel in ("email.bot", "telegram.bot"))
    assert (email.failure_threshold, email.recovery_timeout) == (2, 8)
    assert (telegram.failure_threshold, telegram.recovery_timeout) == (4, 8)
    assert failures_until_open(section, "email.bot") == 2
    assert failures_until_open(section, "telegram.bot") == 4


def test_a_channels_own_breaker_holds_where_the_file_names_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = Outbound(breaker=Breaker(failure_threshold=1))
    monkeypatch.setattr(config, "_outbound", lambda: {"email": eager, "sms": Outbound()})
    given = DeliverySection.model_validate(
        {"breaker": {"failure_threshold": 4, "probe_limit": 3, "sms": {"failure_threshold": 2}}}
    )
    assert given.breaker.policy("email").probe_limit == 3, "what the channel does not name"
    thresholds = [given.breaker.policy(name).failure_threshold for name in ("email", "sms", "telegram")]
    assert thresholds == [1, 2, 4]
    named = DeliverySection.model_validate({"breaker": {"email": {"failure_threshold": 3}}})
    assert named.breaker.policy("email").failure_threshold == 3


def failures_until_open(section: DeliverySection, channel: str) -> int:
    """How many failed attempts in a row open the channel's circuit, as the delivery rows learn from them."""
    name, _, scope = channel.partition(".")
    failed = Ended(
        delivery=claimed_delivery(channel=name, identity_scope=scope),
        result=NotSent(error=TargetUnavailable("502")),
        settlement=Settlement(status="awaiting_retry"),
        latency_ms=1,
        receipt_id=UUID(int=1),
    )
    closed = row({"name": channel, **asdict(circuit_breaker.Breaker())})
    for failures in range(1, 10):
        if learned([closed], [failed] * failures, section.breaker, START)[channel].state == "open":
            return failures
    return 0
