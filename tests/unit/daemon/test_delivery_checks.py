"""What the doctor finds in the roster's words about adapters, channels and gates."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from butlers.daemon import checks, delivery_checks
from butlers.daemon.machine_checks import Check, Status
from butlers.daemon.settings import Settings, shipped_roster
from butlers.daemon.simulation import what_to_simulate
from butlers.roster import load_roster

SMS = """
[modules.sms]
adapter = "{adapter}"

[modules.sms.options]
{option} = "https://gateway.example/messages"

[modules.sms.options_env]
signing_key = "SMS_SIGNING_KEY"
"""


def roster(tmp_path: Path, more: str) -> delivery_checks.Roster:
    shutil.copytree(shipped_roster(), tmp_path / "roster")
    path = tmp_path / "roster" / "messenger" / "butler.toml"
    path.write_text(path.read_text() + more)
    return load_roster(tmp_path / "roster")


def found(tmp_path: Path, more: str) -> dict[str, Check]:
    read = roster(tmp_path, more)
    every = (*delivery_checks.adapters(read, {}), *delivery_checks.channel_names(read))
    return {check.name: check for check in (*every, *delivery_checks.gated_tools(read))}


def test_the_shipped_roster_has_nothing_to_complain_about(tmp_path: Path) -> None:
    assert found(tmp_path, "") == {}


@pytest.mark.parametrize(
    ("adapter", "option", "status", "says"),
    [
        ("webhook", "url", Status.OK, "webhook of package butlers"),
        ("pigeon", "url", Status.FAIL, "no adapter is called 'pigeon'; installed: "),
        ("webhook", "uri", Status.FAIL, "modules.sms.options.uri"),
    ],
)
def test_an_adapter_is_looked_up_and_its_options_read(
    tmp_path: Path, adapter: str, option: str, status: Status, says: str
) -> None:
    check = found(tmp_path, SMS.format(adapter=adapter, option=option))["adapter.sms"]
    assert (check.status, says in check.detail) == (status, True), check


def test_a_channel_that_does_not_exist_is_named(tmp_path: Path) -> None:
    [check] = found(tmp_path, "\n[delivery.retry.emial]\nmax_attempts = 3\n").values()
    assert (check.name, check.status) == ("delivery.retry.emial", Status.WARN)
    assert "email" in check.remedy


def test_a_gate_before_no_tool_fails_and_near_names_are_told(tmp_path: Path) -> None:
    gated = '\n[modules.approvals]\ngated_tools = ["telegram_sned_message", "notify", "email_send_message"]\n'
    [check] = found(tmp_path, gated).values()
    assert (check.name, check.status) == ("gate.messenger.telegram_sned_message", Status.FAIL)
    assert "telegram_send_message" in check.remedy


def test_the_secrets_of_an_adapter_are_not_simulated_and_have_no_scope(tmp_path: Path) -> None:
    read, chosen = roster(tmp_path, SMS.format(adapter="webhook", option="url")), Settings(data_dir=tmp_path)
    simulated = what_to_simulate(chosen, read, {})
    every = {check.name: check for check in checks.credentials(chosen, read, simulated, {})}
    check = every["credentials.sms"]
    assert (check.status, check.remedy) == (Status.FAIL, "export SMS_SIGNING_KEY=..., or remove [modules.sms]")
    settled = checks.credentials(chosen, read, simulated, {"SMS_SIGNING_KEY": "x"})
    assert {check.status for check in settled} == {Status.OK}
