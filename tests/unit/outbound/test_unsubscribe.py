"""Signed links, and the key that signs them."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from butlers.contracts.notify import check_unsubscribe_url
from butlers.errors import ConfigurationError
from butlers.outbound.unsubscribe import LONGEST_TOKEN, Subscription, UnsubscribeLinks, load_key

NEWS = Subscription(person="0198c2f4", event="news ✉ \U0001f600", channel="email")
LINKS = UnsubscribeLinks(key=b"k" * 32, public_url="https://example.org/")


def test_a_link_says_who_what_and_by_which_channel() -> None:
    link = LINKS.url_for(NEWS.person, NEWS.event, NEWS.channel)
    assert link is not None and link.isascii()
    start, _, token = link.rpartition("/")
    assert start == "https://example.org/unsubscribe"
    assert LINKS.read(token) == NEWS
    assert UnsubscribeLinks(key=b"k" * 32, public_url=None).url_for("a", "b", "c") is None


def test_a_link_is_what_notify_takes_or_there_is_none() -> None:
    for event in ("x" * 512, "Ä" * 200, "line\nbreak"):
        link = LINKS.url_for("0198c2f4-0000-7000-8000-000000000001", event, "email")
        assert link is not None and check_unsubscribe_url(link) == link
        assert LINKS.read(link.rpartition("/")[2]) == Subscription(
            person="0198c2f4-0000-7000-8000-000000000001", event=event, channel="email"
        )
    assert LINKS.url_for("0198c2f4-0000-7000-8000-000000000001", "Ä" * 512, "email") is None


def test_a_token_of_another_key_or_with_another_content_is_not_ours() -> None:
    token = LINKS.token(NEWS)
    content, _, signature = token.partition(".")
    forged = urlsafe_b64encode(b'["somebody else", "news", "email"]').decode().rstrip("=")
    assert UnsubscribeLinks(key=b"x" * 32, public_url=None).read(token) is None
    for wrong in (
        f"{forged}.{signature}",
        f"{content}.",
        f".{signature}",
        content,
        "",
        ".",
        token + "x",
        "é" * 10,
        "a" * (LONGEST_TOKEN + 1),
        f"{content}.{signature[:-4]}",
    ):
        assert LINKS.read(wrong) is None, wrong


def test_the_key_is_made_once_and_for_the_own_account_alone(tmp_path: Path) -> None:
    path = tmp_path / "unsubscribe.key"
    key = load_key(path)
    assert len(key) == 32 and load_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="readable by others"):
        load_key(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="must hold 32 bytes"):
        load_key(path)
