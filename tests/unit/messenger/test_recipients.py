"""Who may be written to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.messenger.admission_rules import RecipientRule, not_permitted, suppressed
from butlers.messenger.config import RecipientsSection

from .given import at

ADDRESSES = st.from_regex(r"[a-z0-9]{1,8}@[a-z]{1,8}\.example", fullmatch=True)


@pytest.mark.parametrize(
    ("allow", "deny", "address", "permitted"),
    [
        ([], [], "email:a@a.example", True),
        ([], ["email:a@a.example"], "email:a@a.example", False),
        ([], ["email:*@a.example"], "email:b@a.example", False),
        ([], ["email:*@a.example"], "email:b@b.example", True),
        ([], ["telegram:*"], "email:b@b.example", True),
        (["telegram:7"], [], "telegram:7", True),
        (["telegram:7"], [], "telegram:77", False),
        (["telegram:7"], [], "email:a@a.example", False),
        (["telegram:?"], [], "telegram:8", True),
        (["*"], ["telegram:7"], "telegram:7", False),
        (["telegram:7"], ["telegram:7"], "telegram:7", False),
        ([], ["Email:A@A.Example"], "email:a@a.example", False),
        (["email:a@a.example"], [], "email:A@A.EXAMPLE", True),
    ],
)
def test_deny_wins_and_an_empty_allow_list_allows_everybody(
    allow: list[str], deny: list[str], address: str, permitted: bool
) -> None:
    channel, _, target = address.partition(":")
    problem = not_permitted(RecipientsSection(allow=allow, deny=deny), channel=channel, target=target)
    assert (problem is None) == permitted


@given(ADDRESSES, st.lists(ADDRESSES.map(lambda address: f"email:{address}"), max_size=5))
def test_whoever_is_denied_is_not_written_to_whatever_is_allowed(address: str, allow: list[str]) -> None:
    policy = RecipientsSection(allow=[*allow, f"email:{address}"], deny=[f"email:{address}"])
    assert not_permitted(policy, channel="email", target=address) == "is on the deny list"


@pytest.mark.parametrize(("rule", "since", "wrote_at", "silent"), [
    ("suppressed", 0, None, True),
    ("suppressed", 0, -1, True),
    ("suppressed", 0, 0, True),
    ("suppressed", 0, 1, False),
    ("moved", 0, None, False),
])  # fmt: skip
def test_a_suppressed_recipient_comes_back_by_writing(
    rule: str, since: float, wrote_at: float | None, silent: bool
) -> None:
    stored = RecipientRule(rule=rule, moved_to=None, reason="blocked us", since=at(since))
    problem = suppressed(stored, wrote_at=None if wrote_at is None else at(wrote_at))
    assert (problem is not None) == silent
    assert problem is None or ("2026-03-01" in problem and "blocked us" in problem)


def test_without_a_rule_nobody_is_suppressed() -> None:
    assert suppressed(None, wrote_at=None) is None
