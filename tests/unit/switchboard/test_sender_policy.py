"""Who is served, by policy; codes; and whether a mail server vouches for a mail."""

from __future__ import annotations

import random
from typing import Any

import pytest

from butlers.channels.email.authentication import vouches_for, written_by_a_machine
from butlers.switchboard.senders import (
    LETTERS,
    Known,
    Policy,
    Reason,
    decide,
    new_code,
    read_approval,
    read_code,
    shown,
)

NOT_OWNER, UNKNOWN = Reason.NOT_THE_OWNER, Reason.UNKNOWN


@pytest.mark.parametrize(
    ("policy", "owner", "contact", "stranger"),
    [
        (Policy.OWNER, None, NOT_OWNER, UNKNOWN),
        (Policy.CONTACTS, None, None, UNKNOWN),
        (Policy.PAIRING, None, None, UNKNOWN),
        (Policy.OPEN, None, None, None),
    ],
)
def test_who_is_served(policy: Policy, owner: Any, contact: Any, stranger: Any) -> None:
    for known, reason in ((Known.OWNER, owner), (Known.CONTACT, contact), (Known.STRANGER, stranger)):
        assert decide(policy, known) is reason


@pytest.mark.parametrize("policy", [Policy.OWNER, Policy.CONTACTS, Policy.PAIRING])
@pytest.mark.parametrize("known", list(Known))
def test_a_name_that_nobody_vouches_for_is_nobodys(policy: Policy, known: Known) -> None:
    assert decide(policy, known, authenticated=False) is Reason.NOT_AUTHENTICATED


def test_open_serves_strangers_and_nobody_under_a_known_name_without_a_voucher() -> None:
    assert decide(Policy.OPEN, Known.STRANGER, authenticated=False) is None
    assert decide(Policy.OPEN, Known.OWNER, authenticated=False) is Reason.NOT_AUTHENTICATED
    assert decide(Policy.OPEN, Known.CONTACT, authenticated=False) is Reason.NOT_AUTHENTICATED


def test_a_code_is_read_however_it_is_spelled_and_no_word_is_one() -> None:
    code = new_code(random.Random(7).choice)
    assert len(code) == 8
    assert set(code) <= set(LETTERS)
    for spelled in (code, shown(code), shown(code).lower(), f" {code[:4]} {code[4:]} "):
        assert read_code(spelled) == code
        assert read_approval(f"Approve {spelled}") == code
    for other in ("", "approve", "payments", "hello there", "1111-1111", code + "X", "a" * 5_000, code[:7]):
        assert read_code(other) is None
    for other in (code, "approve payments", f"please approve {code}", "approve", "approve " + "9" * 5_000):
        assert read_approval(other) is None


# --- mail ------------------------------------------------------------------------------------------------------------

SERVER = "mx.home.example"


def mail(*results: str, sender: Any = "Ann <ann@far.example>", **more: Any) -> dict[str, Any]:
    return {"headers": {"from": sender, "authentication-results": list(results), **more}}


def vouched(*results: str, sender: str = "ann@far.example", server: str | None = SERVER, **more: Any) -> bool:
    return vouches_for(sender, mail(*results, sender=f"Ann <{sender}>", **more), server=server)


@pytest.mark.parametrize(
    "results",
    [
        "mx.home.example; dmarc=pass header.from=far.example",
        "mx.home.example 1; spf=fail smtp.mailfrom=x@y.example; dmarc=pass (p=none dis=none) header.from=Far.Example",
        "MX.Home.Example; dkim=pass (2048-bit key) header.d=far.example header.s=k",
        "mx.home.example; dkim=fail header.d=list.example; dkim=pass header.i=@far.example",
        "mx.home.example; dkim = pass header.d = example.org; spf=pass smtp.mailfrom=bounce@far.example",
        'mx.home.example; spf=pass (says "a;b") smtp.mailfrom="bounce"@far.example',
    ],
)
def test_a_server_vouches_for_a_mail(results: str) -> None:
    assert vouched(results)


def test_a_signature_of_the_domain_above_counts() -> None:
    results = "mx.home.example; dkim=pass header.d=far.example"
    assert vouched(results, sender="ann@mail.far.example")
    assert not vouched(results, sender="ann@notfar.example")
    assert not vouched("mx.home.example; dkim=pass header.d=example", sender="ann@far.example")


@pytest.mark.parametrize(
    "results",
    [
        "",
        ";",
        "mx.home.example; none",
        "mx.home.example; dmarc=fail header.from=far.example",
        "mx.home.example; dmarc=pass header.from=evil.example",
        "mx.home.example; dmarc=pass",
        "mx.home.example; dkim=pass header.d=evil.example; spf=pass smtp.mailfrom=a@evil.example",
        "mx.evil.example; dmarc=pass header.from=far.example",
        "mx.home.example; dmarc=fail header.from=far.example; dmarc=pass header.from=far.example",
        'mx.home.example; spf=fail smtp.mailfrom="x; dmarc=pass header.from=far.example"@evil.example',
        "mx.home.example; spf=fail (a (nested) ; dmarc=pass header.from=far.example) smtp.mailfrom=a@evil.example",
        "mx.home.example; spf=fail (open ; dmarc=pass header.from=far.example",
        "mx.home.example.evil.example; dmarc=pass header.from=far.example",
    ],
)
def test_a_server_does_not_vouch_for_a_mail(results: str) -> None:
    assert not vouched(results)


@pytest.mark.parametrize("verdict", ["fail", "temperror", "permerror", "pass header.from=evil.example"])
def test_where_the_server_speaks_of_dmarc_that_alone_decides(verdict: str) -> None:
    others = "dkim=pass header.d=far.example; spf=pass smtp.mailfrom=a@far.example"
    assert not vouched(f"{SERVER}; {others}; dmarc={verdict}")
    assert not vouched(f"{SERVER}; dmarc/1={verdict}; {others}")
    assert not vouched(f"{SERVER}; dmarc=none; dmarc={verdict}; {others}")
    assert vouched(f"{SERVER}; dmarc=none header.from=far.example; {others}")
    assert vouched(f"{SERVER}; {others}")


def test_a_server_vouches_for_the_one_address_of_the_one_from() -> None:
    good, ann = f"{SERVER}; dmarc=pass header.from=far.example", "ann@far.example"
    decoded = "ann@far.example, <eve@far.example>"
    for written in (decoded, "ann@far.example, eve@far.example", "<ann@far.example> <eve@far.example>", "Ann", ""):
        assert not vouches_for(ann, mail(good, sender=written), server=SERVER)
    assert not vouches_for("eve@far.example", mail(good), server=SERVER)
    assert vouches_for(ann, mail(good, sender="ann@far.example"), server=SERVER)
    for author, counts in ((ann, True), ("", False), (None, False), ("eve@far.example", False)):
        named = mail(good, sender='"ann@far.example" <ann@far.example>') | {"author": author}
        assert vouches_for(ann, named, server=SERVER) is counts


def test_only_the_topmost_header_of_the_server_counts() -> None:
    good, bad = f"{SERVER}; dmarc=pass header.from=far.example", f"{SERVER}; dmarc=fail header.from=far.example"
    assert vouched("mx.relay.example; dmarc=fail header.from=far.example", good, bad)
    assert not vouched(bad, good)
    assert not vouched(good, server=None)
    assert not vouched(good, sender="no address")
    assert not vouches_for("ann@far.example", mail(good, sender=["ann@far.example", "evil@far.example"]), server=SERVER)
    shapeless: tuple[Any, ...] = (None, [], {}, {"headers": 1})
    assert not any(vouches_for("ann@far.example", raw, server=SERVER) for raw in shapeless)


@pytest.mark.parametrize("piece", ["(", ")", '"', "\\", ";", "=", " ", "dkim=pass ", "(\\", '"\\', "header.d=", "; "])
def test_hostile_headers_are_read_in_bounded_time(piece: str) -> None:
    """Of a megabyte only the first few thousand characters are looked at; this ends, or the test does not."""
    assert not vouched(f"{SERVER}; {piece * 400_000}", *[piece * 400_000] * 100)


def test_mail_of_machines_is_known() -> None:
    assert not written_by_a_machine(mail())
    assert not written_by_a_machine(mail(**{"Auto-Submitted": "no"}))
    for name, value in (("Auto-Submitted", "auto-replied"), ("List-Id", "<x>"), ("Return-Path", "<>"), ("X-Loop", "y")):
        assert written_by_a_machine(mail(**{name: value}))
