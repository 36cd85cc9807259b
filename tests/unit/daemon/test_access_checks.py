"""What `butlers doctor` says about who may write in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from butlers.daemon.delivery_checks import who_may_write
from butlers.daemon.settings import Settings
from butlers.daemon.simulation import Simulated, simulated_settings

REAL, SIMULATED = Simulated(), Simulated({"telegram", "mail"})


def said(simulated: Simulated, **settings: Any) -> dict[str, tuple[str, str]]:
    given = Settings(data_dir=Path("x"), imap_host="imap.example", **settings)
    checks = who_may_write(given, simulated)
    return {check.name.removeprefix("who_may_write."): (check.status.value, check.detail) for check in checks}


def test_simulators_are_open_and_real_providers_are_the_owners() -> None:
    plain = Settings(data_dir=Path("x"))
    simulated = simulated_settings(plain, SIMULATED)
    assert (plain.who_may_write("telegram"), plain.who_may_write("email")) == ("owner", "owner")
    assert (simulated.who_may_write("telegram"), simulated.who_may_write("email")) == ("open", "open")
    assert (plain.mail_authentication, simulated.mail_authentication) == (None, "off")
    strict = simulated_settings(Settings(data_dir=Path("x"), who_may_write_telegram="pairing"), SIMULATED)
    assert strict.who_may_write("telegram") == "pairing"


@pytest.mark.parametrize(
    ("settings", "name", "status", "words"),
    [
        ({}, "telegram", "ok", "prints a code"),
        ({"owner_telegram": "42"}, "telegram", "ok", "the owner is 42"),
        ({"owner_telegram": "@ann"}, "telegram", "warn", "nobody is known to be the owner"),
        ({"who_may_write_telegram": "open"}, "telegram", "warn", "everybody"),
        ({}, "email", "warn", "no owner's address"),
        ({"owner_email": "a@b.example"}, "email", "ok", "a@b.example"),
        ({}, "mail_authentication", "warn", "every mail will be refused"),
        ({"mail_authserv_id": "mx.b.example"}, "mail_authentication", "ok", "mx.b.example"),
        ({"mail_authentication": "off"}, "mail_authentication", "warn", "served as them"),
        ({"who_may_write_email": "open"}, "mail_authentication", "warn", "mail of known senders will be refused"),
    ],
)
def test_a_real_provider_is_explained(settings: dict[str, Any], name: str, status: str, words: str) -> None:
    found = said(REAL, **settings)[name]
    assert found[0] == status
    assert words in found[1]


def test_a_simulated_one_needs_nothing() -> None:
    assert {name: status for name, (status, _) in said(SIMULATED).items()} == {"telegram": "ok", "email": "ok"}


@pytest.mark.parametrize("simulated", [Simulated({"mail"}), Simulated({"telegram"})])
def test_beside_a_real_channel_a_simulated_one_has_the_same_rules(simulated: Simulated) -> None:
    mixed = simulated_settings(Settings(data_dir=Path("x")), simulated)
    assert (mixed.who_may_write("telegram"), mixed.who_may_write("email")) == ("owner", "owner")
    assert mixed.mail_authentication is None
    assert "everybody" not in str(said(simulated))


def test_simulators_listen_on_this_machine_only() -> None:
    wide = Settings(data_dir=Path("x"), host="0.0.0.0")
    chosen = simulated_settings(wide, SIMULATED)
    assert {chosen.smtp_host, chosen.imap_host, wide.simulator_host} == {"127.0.0.1"}
    assert chosen.telegram_api_url.startswith("http://127.0.0.1:")
