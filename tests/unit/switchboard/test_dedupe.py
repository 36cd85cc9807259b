"""When two events are one request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.butler.identity import Caller
from butlers.contracts.ingest import IngestEnvelope
from butlers.operations.operation import Role
from butlers.switchboard.ingress.ingress import DedupeIdentity, dedupe_identity

CONNECTOR = Caller(name="connector.telegram", role=Role.CONNECTOR)


def identity(
    *,
    channel: str = "telegram",
    provider: str | None = None,
    bot: str = "bot",
    event: str = "1",
    sender: str = "anna",
    text: str = "hello",
    key: str | None = None,
    caller: Caller = CONNECTOR,
) -> DedupeIdentity:
    usual = {"telegram": "telegram", "email": "imap"}.get(channel, "internal")
    return dedupe_identity(
        IngestEnvelope.parse(
            {
                "schema_version": "ingest.v1",
                "source": {"channel": channel, "provider": provider or usual, "endpoint_identity": bot},
                "event": {"external_event_id": event, "observed_at": "2026-01-01T00:00:00Z"},
                "sender": {"identity": sender},
                "payload": {"raw": None, "normalized_text": text},
                "control": {"idempotency_key": key},
            }
        ),
        submitted_by=caller,
    )


@pytest.mark.parametrize("channel", ["telegram", "email"])
def test_an_event_handed_in_by_a_caller_never_passes_for_the_connectors_own(channel: str) -> None:
    operator, another = Caller(name="ann", role=Role.OPERATOR), Caller(name="another", role=Role.CONNECTOR)
    assert len({identity(channel=channel, caller=caller).key for caller in (CONNECTOR, operator, another)}) == 3


@pytest.mark.parametrize("channel", ["telegram", "email", "api", "mcp"])
@pytest.mark.parametrize("key", [None, "k"])
def test_two_submitters_never_share_a_key_and_operators_count_as_one(channel: str, key: str | None) -> None:
    clients = [Caller(name=name, role=Role.CLIENT) for name in ("phone", "kiosk", "caller")]
    connector = Caller(name="phone", role=Role.CONNECTOR)
    operators = [Caller(name=name, role=Role.OPERATOR) for name in ("local", "ann")]
    keys = {identity(channel=channel, key=key, caller=caller).key for caller in (*clients, connector, *operators)}
    assert len(keys) == 5


@pytest.mark.parametrize("channel", ["telegram", "email"])
def test_a_provider_names_its_events(channel: str) -> None:
    first = identity(channel=channel)
    assert first.strategy == "event"
    assert first == identity(channel=channel, text="edited", sender="ben", key="caller's")
    assert first != identity(channel=channel, event="2")
    assert first != identity(channel=channel, bot="other")


def test_saying_ok_twice_on_telegram_is_two_messages() -> None:
    assert identity(event="1", text="ok") != identity(event="2", text="ok")


def test_one_mail_in_two_mailboxes_is_two_events() -> None:
    assert identity(channel="email", bot="a@a.example") != identity(channel="email", bot="b@b.example")


@pytest.mark.parametrize("channel", ["api", "mcp"])
def test_a_callers_key_decides_alone(channel: str) -> None:
    first = identity(channel=channel, key="k", event="1", text="a")
    assert first.strategy == "idempotency_key"
    assert first == identity(channel=channel, key=" k ", event="2", text="b", sender="ben")
    assert first != identity(channel=channel, key="K", event="1", text="a"), "a key is not folded"
    assert first != identity(channel=channel, key="k", bot="another door")


@pytest.mark.parametrize("channel", ["api", "mcp"])
def test_without_a_key_the_event_its_content_and_its_source_decide(channel: str) -> None:
    first = identity(channel=channel)
    assert first.strategy == "content"
    assert first != identity(channel=channel, event="2"), "two events, whatever their text"
    assert first == identity(channel=channel, text=" hello\r\n")
    assert first != identity(channel=channel, text="Hello")
    assert first != identity(channel=channel, sender="ben")
    assert first != identity(channel=channel, bot="another door")


@given(st.sampled_from(["telegram", "email", "api", "mcp"]), st.sampled_from(["telegram", "email", "api", "mcp"]))
def test_channels_never_share_a_key(one: str, other: str) -> None:
    same: dict[str, Any] = {"event": "1", "key": "1", "text": "1"}
    assert (identity(channel=one, **same).key == identity(channel=other, **same).key) == (one == other)


def test_an_event_a_key_and_a_content_of_the_same_letters_are_three() -> None:
    keys = {identity(event="x").key, identity(channel="api", key="x").key, identity(channel="api", text="x").key}
    assert len(keys) == 3
