"""What an address looks like on each channel."""

from __future__ import annotations

import pytest

from butlers.channels.registry import canonical_address, channel_of


@pytest.mark.parametrize(
    ("channel", "address"),
    [
        ("email", "friend@elsewhere.example"),
        ("email", "a/b@example.org"),
        ("telegram", "1000"),
        ("telegram", "-1001234567890"),
        ("telegram", "@ann_s"),
        ("sms", "+15550100"),
        ("sms", "12345"),
        ("chat", "room 7"),
    ],
)
def test_addresses(channel: str, address: str) -> None:
    assert channel_of(channel).address.problem(address) is None


@pytest.mark.parametrize(
    ("channel", "address"),
    [
        ("email", "friend"),
        ("email", "friend@"),
        ("email", "two@a.example, three@b.example"),
        ("email", "friend@elsewhere.example\r\nBcc: x@y.example"),
        ("email", "fr\N{LATIN SMALL LETTER I WITH DIAERESIS}end@elsewhere.example"),
        ("email", f"{'x' * 320}@a.example"),
        ("telegram", "ann"),
        ("telegram", "@a"),
        ("telegram", "friend@elsewhere.example"),
        ("sms", "call me"),
        ("sms", "+1 555 0100"),
        ("chat", "room\n7"),
    ],
)
def test_what_is_none(channel: str, address: str) -> None:
    problem = channel_of(channel).address.problem(address)
    assert problem is not None
    assert address not in problem  # never what was typed


@pytest.mark.parametrize(
    ("channel", "written", "address"),
    [
        ("email", " Bob@Example.COM\n", "bob@example.com"),
        ("email", '"bob"@example.com', "bob@example.com"),
        ("email", "Not An Address", "not an address"),
        ("telegram", " @Ann_S ", "@ann_s"),
        ("telegram", "0061", "61"),
        ("telegram", "-00100", "-100"),
        ("telegram", "000", "0"),
        ("sms", "+1 (555) 01-00", "+15550100"),
        ("sms", " - ", "-"),
        ("chat", " Room 7 ", "Room 7"),
    ],
)
def test_one_spelling_stands_for_all(channel: str, written: str, address: str) -> None:
    assert canonical_address(channel, written) == address
    assert canonical_address(channel, address) == address
