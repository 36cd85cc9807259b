"""When two events are one request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.contracts.ingest import IngestEnvelope
from butlers.switchboard.dedupe import DedupeIdentity, dedupe_identity


def identity(
    *,
    channel: str = "telegram",
    provider: str | None = None,
    bot: str = "bot",
    event: str = "1",
    sender: str = "anna",
    text: str = "hello",
    key: str | None = None,
    connector: str | None = "connector.telegram",
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
        connector=connector,
    )


@pytest.mark.parametrize("channel", ["telegram", "email"])
def test_an_event_handed_in_by_a_caller_never_passes_for_the_connectors_own(channel: str) -> None:
    assert identity(channel=channel).key != identity(channel=channel, connector=None).key
    assert identity(channel=channel).key != identity(channel=channel, connector="another").key


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
def test_without_a_key_the_content_and_its_source_decide(channel: str) -> None:
    first = identity(channel=channel)
    assert first.strategy == "content"
    assert first == identity(channel=channel, event="2")
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
