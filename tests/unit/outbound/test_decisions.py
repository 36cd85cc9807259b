"""Channels, permissions, documents, retries, and all of them together."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from butlers.errors import ValidationError
from butlers.outbound.documents import (
    MessageDocument,
    PreferenceDocument,
    SystemDefaultsDocument,
    parse_document,
    read_preferences,
)
from butlers.outbound.planning import (
    Circumstances,
    Direction,
    check_permission_name,
    is_permitted,
    plan,
    resolve_channels,
    schedule_retry,
)
from butlers.outbound.quiet_hours import QuietHours, QuietWindow
from butlers.outbound.values import Blocked, BlockedReason, Queued, Recipient

_NOW = datetime(2026, 6, 10, 21, 0, tzinfo=UTC)  # 23:00 in Berlin
_ID = "0197588a-5c00-7000-8000-000000000001"
_NIGHT = {"start_time": "22:00", "end_time": "07:00", "timezone": "Europe/Berlin"}
_RECEIVER = frozenset({"messages:receive:*"})
_ENABLED = ("telegram", "email", "sms")


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        pytest.param([{}, {}, {}], "telegram", id="nobody says anything: any enabled channel"),
        pytest.param([{"email": True}, {"sms": True}, {}], "email", id="the person first"),
        pytest.param([{}, {"sms": True}, {"email": True}], "sms", id="then the organization"),
        pytest.param([{}, {}, {"email": True}], "email", id="then the system"),
        pytest.param([{"sms": False}, {"sms": True}, {}], "telegram", id="a refusal wins over the organization"),
        pytest.param([{"sms": True}, {"sms": False}, {}], "sms", id="a wish wins over the organization's refusal"),
        pytest.param([{}, {"telegram": False}, {"telegram": True}], "email", id="the organization over the system"),
        pytest.param([{"telegram": False, "email": False, "sms": False}, {"sms": True}, {}], None, id="all refused"),
        pytest.param([{"pager": True}, {}, {}], "telegram", id="a channel that is not enabled"),
        pytest.param([{"email": True, "telegram": True}, {}, {}], "telegram", id="the system's order between equals"),
    ],
)
def test_the_channel(levels: list[dict[str, bool]], expected: str | None) -> None:
    kept = [each.channel for each in resolve_channels(levels, _ENABLED) if each.is_allowed]

    assert next(iter(kept), None) == expected


@pytest.mark.parametrize(
    ("granted", "allowed"),
    [
        ("messages:send:email", True),
        ("messages:send:*", True),
        ("messages:*:email", True),
        ("messages:*:*", True),
        ("messages:receive:email", False),
        ("messages:send:sms", False),
        ("*", False),
    ],
)
def test_permissions_are_compared_part_by_part(granted: str, allowed: bool) -> None:
    assert is_permitted({granted}, Direction.SEND, "email") is allowed


@pytest.mark.parametrize("name", ["*:send:email", "messages:send", "messages:send:email:x", "messages::email", "*"])
def test_what_is_no_permission_cannot_be_granted(name: str) -> None:
    with pytest.raises(ValidationError, match="permission"):
        check_permission_name(name)


def _document(**changes: Any) -> MessageDocument:
    fields = {"id": _ID, "sender_id": "billing", "body": "Hello", "recipient_ids": ["a"]} | changes
    return parse_document(MessageDocument, json.dumps(fields), kind="message")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"body": None}, "template_id or body"),
        ({"template_id": "t"}, "template_id or body"),
        ({"recipient_ids": ["a", "a"]}, "recipient_ids"),
        ({"recipient_ids": [" "]}, "recipient_ids.0"),
        ({"priority": "asap"}, "priority"),
        ({"wat": 1}, "wat"),
        ({"id": "x"}, "id"),
        ({"delivery_policy": {"throttling": {"max_per_minute": 0}}}, "max_per_minute"),
        ({"delivery_policy": {"retry": {"max_attempts": 11}}}, "max_attempts"),
        ({"delivery_policy": {"retry": {"backoff_strategy": "custom"}}}, "schedule_seconds"),
        ({"delivery_policy": {"quiet_hours": _NIGHT | {"timezone": "Mars/Olympus"}}}, "timezone"),
        ({"delivery_policy": {"quiet_hours": _NIGHT | {"timezone": "../../etc/passwd"}}}, "timezone"),
        ({"delivery_policy": {"quiet_hours": _NIGHT | {"start_time": "24:00"}}}, "start_time"),
        ({"delivery_policy": {"quiet_hours": _NIGHT | {"days_of_week": [0]}}}, "days_of_week"),
    ],
)
def test_a_wrong_message_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field.replace(".", r"\.")):
        _document(**changes)


def test_a_policy_becomes_what_the_decisions_take() -> None:
    policy = _document(
        delivery_policy={
            "retry": {"max_attempts": 5, "backoff_strategy": "linear", "initial_delay_seconds": 10},
            "throttling": {"max_per_day": None},
            "quiet_hours": [_NIGHT | {"days_of_week": ["sun", 1]}],
            "metadata": {"linear_increment_seconds": 30, "max_backoff_seconds": 100},
        }
    ).delivery_policy.policy()

    assert (policy.retry.max_attempts, policy.retry.increment, policy.retry.max_delay) == (5, 30, 100)
    assert (policy.throttling.max_per_minute, policy.throttling.max_per_day) == (60, None)
    assert policy.quiet_hours.windows[0].days == (1, 7)


def test_preferences_may_hold_more_than_is_read_here() -> None:
    document = {"theme": "dark", "notifications": {"sound": 3, "matrix": {"bill": {"email": True, "sms": None}}}}

    preferences = read_preferences(json.dumps(document))

    assert preferences.opinions("bill") == {"email": True}
    assert preferences.opinions("other") == {}


_T0 = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        ({"backoff_strategy": "none", "max_attempts": 5}, [None]),
        ({"backoff_strategy": "linear", "max_attempts": 4}, [60, 120, 180, None]),
        ({"backoff_strategy": "exponential", "max_attempts": 8}, [60, 120, 240, 480, 960, 1800, 1800, None]),
        ({"backoff_strategy": "custom", "schedule_seconds": [5, 9999], "max_attempts": 3}, [5, 1800, None]),
    ],
)
def test_retries_follow_the_formulas(retry: dict[str, Any], delays: list[int | None]) -> None:
    policy = _document(delivery_policy={"retry": retry}).delivery_policy.policy().retry
    found = [
        schedule_retry(policy, attempt=n, failed_at=_T0, quiet=QuietHours(), until=_T0 + timedelta(days=1))
        for n in range(1, len(delays) + 1)
    ]

    assert found == [delay if delay is None else _T0 + timedelta(seconds=delay) for delay in delays]


def test_a_retry_never_lands_in_quiet_hours() -> None:
    quiet = QuietHours((QuietWindow(start="12:00", end="14:00", timezone="UTC"),))
    policy = _document().delivery_policy.policy().retry
    almost = _T0 - timedelta(seconds=30)

    assert schedule_retry(policy, attempt=1, failed_at=almost, quiet=quiet, until=_T0 + timedelta(days=1)) == (
        _T0 + timedelta(hours=2)
    )


def _circumstances(**changes: Any) -> Circumstances:
    system = parse_document(SystemDefaultsDocument, json.dumps({"channels": list(_ENABLED)}), kind="defaults")
    return Circumstances(
        message=_document(**changes).message(),
        now=_NOW,
        horizon=_NOW + timedelta(days=7),
        sender_permissions=frozenset({"messages:send:email", "messages:send:telegram"}),
        system=system.defaults(),
    )


def _person(name: str, *, permissions: frozenset[str] = _RECEIVER, **document: Any) -> Recipient:
    parse_document(PreferenceDocument, json.dumps(document), kind="preferences")
    return Recipient(id=name, preferences=json.dumps(document) if document else None, permissions=permissions)


def _wants(channel: str) -> dict[str, Any]:
    return {"matrix": {"message": {channel: True}}}


def test_everybody_gets_a_decision_in_the_order_asked_for() -> None:
    people = [
        _person("sleeper", quietHours=_NIGHT),
        _person("awake", notifications=_wants("email")),
        _person("only sms", notifications={"matrix": {"message": {"sms": True, "telegram": False, "email": False}}}),
        _person("stranger", permissions=frozenset()),
        _person("refuser", notifications={"matrix": {"message": dict.fromkeys(_ENABLED, False)}}),
        Recipient(id="broken", preferences='{"quietHours": {"start_time": "x"}}', permissions=_RECEIVER),
        _person("never", quietHours=_NIGHT | {"end_time": "22:00"}),
    ]

    outcomes = plan(people, _circumstances(), booked={})

    assert outcomes[:2] == (
        Queued(
            recipient_id="sleeper",
            channel="telegram",
            scheduled_at=datetime(2026, 6, 11, 5, 0, tzinfo=UTC),
            detail="enabled",
        ),
        Queued(recipient_id="awake", channel="email", scheduled_at=_NOW, detail="user-preference"),
    )
    assert [(o.recipient_id, o.reason.value) for o in outcomes[2:] if isinstance(o, Blocked)] == [
        ("only sms", "sender-permission"),
        ("stranger", "recipient-permission"),
        ("refuser", "no-channel"),
        ("broken", "no-channel"),
        ("never", "throttled"),
    ]


def test_a_channel_without_permission_or_address_gives_way_to_the_next() -> None:
    stored = json.dumps({"notifications": {"matrix": {"message": {"sms": True, "telegram": None}}}})
    people = [
        Recipient(id="no sms from this sender", preferences=stored, permissions=_RECEIVER),
        Recipient(id="only mail", preferences=None, permissions=frozenset({"messages:receive:email"})),
        Recipient(id="no chat", preferences=None, permissions=_RECEIVER, reachable=frozenset({"email", "sms"})),
        Recipient(id="chat failed", preferences=None, permissions=_RECEIVER, failed=frozenset({"telegram"})),
        Recipient(id="denied", preferences=None, permissions=_RECEIVER | {"!messages:*:telegram"}),
        Recipient(id="usually by mail", preferences=None, permissions=_RECEIVER, preferred="email"),
    ]

    outcomes = plan(people, _circumstances(), booked={})

    assert [o.channel for o in outcomes if isinstance(o, Queued)] == ["telegram", *["email"] * 5]


def test_the_policys_quiet_hours_hold_beside_the_persons() -> None:
    policy = {"quiet_hours": {"start_time": "06:00", "end_time": "09:00", "timezone": "Europe/Berlin"}}

    (outcome,) = plan([_person("a", quietHours=_NIGHT)], _circumstances(delivery_policy=policy), booked={})

    assert isinstance(outcome, Queued)
    assert outcome.scheduled_at == datetime(2026, 6, 11, 7, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("priority", "passes", "expected"), [("urgent", True, 21), ("urgent", False, 5), ("high", True, 5)]
)
def test_urgent_passes_where_the_policy_says_so(priority: str, passes: bool, expected: int) -> None:
    policy = {"urgent_passes_quiet_hours": passes}

    (outcome,) = plan(
        [_person("a", quietHours=_NIGHT)], _circumstances(priority=priority, delivery_policy=policy), booked={}
    )

    assert isinstance(outcome, Queued)
    assert outcome.scheduled_at.hour == expected


def test_nothing_is_scheduled_after_its_time() -> None:
    given = _circumstances(not_after="2026-06-11T06:00:00+02:00")

    outcomes = plan([_person("a", quietHours=_NIGHT), _person("b")], given, booked={})

    assert isinstance(outcomes[0], Blocked)
    assert outcomes[0].reason is BlockedReason.THROTTLED
    assert outcomes[0].detail == "no time before 2026-06-11T04:00:00+00:00"
    assert isinstance(outcomes[1], Queued)


def test_within_a_group_the_ids_decide() -> None:
    policy = {"pacing": {"max_per_minute": 1}}
    given = _circumstances(delivery_policy=policy)

    outcomes = plan([_person(name) for name in "cab"], given, booked={})

    waits = {o.recipient_id: o.scheduled_at - _NOW for o in outcomes if isinstance(o, Queued)}
    assert waits == {name: timedelta(minutes=n) for n, name in enumerate("abc")}
    assert given.message.id == UUID(_ID)
