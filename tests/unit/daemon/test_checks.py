"""`butlers doctor`: each check says what it found and what to do, and changes nothing."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from butlers.butler.identity import TokenFile
from butlers.butler.runtimes.cli import probe
from butlers.clock import ManualClock
from butlers.daemon import checks
from butlers.daemon.machine_checks import Check, Status
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings, shipped_roster
from butlers.daemon.simulation import Simulated, what_to_simulate
from butlers.operations.operation import Role
from butlers.roster import load_roster
from butlers.simulators import simulator_ports
from tests.ports import free_port

BOTH = {"BUTLER_TELEGRAM_TOKEN": "t-secret", "BUTLER_EMAIL_ADDRESS": "a@b.example", "BUTLER_EMAIL_PASSWORD": "p-secret"}
ROSTER = load_roster(shipped_roster())
DOORS = {name: config.butler.port for name, config in ROSTER.items()} | dict(simulator_ports())
del DOORS["webhook_simulator"]  # runs only when it is asked for


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken


def settings(tmp_path: Path, **changes: Any) -> Settings:
    ports = {name: free_port() for name in DOORS} | changes.pop("ports", {})
    return Settings(data_dir=tmp_path / "data", ports=ports, **changes)


def port_checks(chosen: Settings, environment: dict[str, str] | None = None) -> dict[str, Check]:
    simulated = what_to_simulate(chosen, ROSTER, environment or {})
    found = checks.ports(chosen, ROSTER, simulated, Places(chosen.data_dir))
    return {check.name: check for check in found}


def credential_checks(chosen: Settings, environment: dict[str, str]) -> dict[str, Check]:
    simulated = what_to_simulate(chosen, ROSTER, environment)
    return {check.name: check for check in checks.credentials(chosen, ROSTER, simulated, environment)}


def llm_checks(chosen: Settings, environment: dict[str, str]) -> dict[str, Check]:
    return {check.name: check for check in checks.llm_programs(chosen, ROSTER, environment)}


def program(folder: Path, name: str, text: str = "#!/bin/sh\n") -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return str(folder)


def test_a_sound_machine_passes_and_nothing_is_made(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    found = [*checks.examine(chosen, {"PATH": os.environ["PATH"]})]
    assert [check for check in found if check.status is Status.FAIL] == []
    assert len({check.name for check in found}) == len(found)
    assert {"python", "data_directory", "free_disk", "database", "tokens", "roster", "java"} <= {c.name for c in found}
    assert list(tmp_path.iterdir()) == []


def test_every_complaint_has_a_remedy_and_no_secret_is_shown(tmp_path: Path) -> None:
    chosen = settings(
        tmp_path,
        llm="on",
        simulators="off",
        database_url="mysql://user:db-secret@127.0.0.1:1/x",
        otlp_endpoint="http://127.0.0.1:1",
    )
    found = [*checks.examine(chosen, {"PATH": "", "JAVA_HOME": str(tmp_path), "BUTLER_EMAIL_PASSWORD": "p-secret"})]
    bad = [check for check in found if check.status is not Status.OK]
    assert all(check.remedy and check.detail for check in bad)
    assert {"database", "credentials.telegram.bot", "credentials.email.bot", "llm.codex", "java", "otlp"} <= {
        check.name for check in bad
    }
    assert "secret" not in str(found)


def test_the_file_of_the_courier_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "courier.yaml"
    for text, status in (("streams: {maxDepth: 5}", Status.OK), ("streams: {maxDept: 5}", Status.FAIL)):
        path.write_text(text)
        found = {check.name: check for check in checks.examine(settings(tmp_path, courier_config=path), {})}
        assert found["courier_config"].status is status
    assert "courier.yaml:1" in found["courier_config"].detail


def test_every_door_is_looked_at(tmp_path: Path) -> None:
    assert set(port_checks(settings(tmp_path))) == {f"port.{name}" for name in (*DOORS, "courier")}


def test_doors_of_providers_that_are_real_are_not_needed(tmp_path: Path) -> None:
    assert set(port_checks(settings(tmp_path), BOTH)) == {f"port.{name}" for name in (*ROSTER, "courier")}


def test_a_taken_port_fails_with_a_way_out(tmp_path: Path, listener: socket.socket) -> None:
    number = listener.getsockname()[1]
    found = port_checks(settings(tmp_path, ports={"general": number}))
    taken = found.pop("port.general")
    assert taken.status is Status.FAIL
    assert str(number) in taken.detail
    assert "--port general=NUMBER" in taken.remedy
    assert {check.status for check in found.values()} == {Status.OK}


def test_a_port_of_our_own_running_system_is_fine(tmp_path: Path, listener: socket.socket) -> None:
    number = listener.getsockname()[1]
    chosen = settings(tmp_path, ports={"general": number, "smtp_simulator": number + 1})
    places = Places(chosen.data_dir)
    places.create()
    places.announce({"doors": {"general": f"http://127.0.0.1:{number}"}, "simulators": {"smtp": "127.0.0.1:2525"}})
    check = port_checks(chosen)["port.general"]
    assert check.status is Status.OK
    assert f"process {os.getpid()}" in check.detail


def test_a_system_that_runs_here_already_is_told(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    places = Places(chosen.data_dir)
    assert list(checks.running(places)) == []
    places.create()
    with places.owned():
        (check,) = checks.running(places)
    assert (check.status, f"process {os.getpid()}" in check.detail) == (Status.WARN, True)
    assert "`butlers up` would be refused" in check.detail
    assert list(checks.running(places)) == [], "a lock that nobody holds is no system"


def test_a_variable_that_is_nearly_a_setting_is_told(tmp_path: Path) -> None:
    environment = {
        "BUTLERS_SMPT_HOST": "x",
        "BUTLERS_SMTP_PORT": "25",
        "BUTLERS_PORT_GENERAL": "1",
        "BUTLERS_ZEBRA": "",
    }
    (check,) = [one for one in checks.examine(settings(tmp_path), environment) if one.name.startswith("environment.")]
    assert (check.name, check.status) == ("environment.BUTLERS_SMPT_HOST", Status.WARN)
    assert check.remedy == "did you mean BUTLERS_SMTP_HOST?"


def test_mail_in_clear_over_a_network_is_warned_of(tmp_path: Path) -> None:
    real = Simulated()
    far = settings(tmp_path, smtp_host="mail.example.org", smtp_tls="none", imap_host="localhost", imap_tls="none")
    assert [check.name for check in checks.mail_in_clear(far, real)] == ["smtp_tls"]
    assert list(checks.mail_in_clear(far, Simulated({"mail"}))) == []


def test_a_system_that_died_owns_no_port(tmp_path: Path, listener: socket.socket) -> None:
    number = listener.getsockname()[1]
    chosen = settings(tmp_path, ports={"general": number})
    places = Places(chosen.data_dir)
    places.create()
    description = {"doors": {"general": f"http://127.0.0.1:{number}"}, "simulators": {}, "pid": 2**22 + 1}
    places.run_file.write_text(json.dumps(description))
    assert port_checks(chosen)["port.general"].status is Status.FAIL


def test_two_doors_on_one_port_fail(tmp_path: Path) -> None:
    number = free_port()
    found = port_checks(settings(tmp_path, ports={"general": number, "health": number}))
    assert found["port.general"].status is Status.OK
    assert found["port.health"].status is Status.FAIL
    assert "general" in found["port.health"].detail


def test_without_credentials_the_providers_are_simulated(tmp_path: Path) -> None:
    found = credential_checks(settings(tmp_path), {})
    assert set(found) == {"credentials.telegram.bot", "credentials.email.bot"}, "the user scopes are off"
    assert {check.status for check in found.values()} == {Status.OK}
    assert all("simulated" in check.detail for check in found.values())


def test_complete_credentials_are_fine_and_not_shown(tmp_path: Path) -> None:
    found = credential_checks(settings(tmp_path), BOTH)
    assert {check.status for check in found.values()} == {Status.OK}
    assert "BUTLER_EMAIL_PASSWORD" in found["credentials.email.bot"].detail
    assert "secret" not in str(found)


@pytest.mark.parametrize("given", ["BUTLER_EMAIL_ADDRESS", "BUTLER_EMAIL_PASSWORD"])
def test_half_a_set_of_credentials_is_a_mistake(tmp_path: Path, given: str) -> None:
    check = credential_checks(settings(tmp_path), {given: "x"})["credentials.email.bot"]
    (missing,) = {"BUTLER_EMAIL_ADDRESS", "BUTLER_EMAIL_PASSWORD"} - {given}
    assert check.status is Status.FAIL
    assert "half" in check.detail
    assert f"export {missing}=..." in check.remedy


def test_without_simulators_credentials_are_required(tmp_path: Path) -> None:
    found = credential_checks(settings(tmp_path, simulators="off"), {})
    assert {check.status for check in found.values()} == {Status.FAIL}
    assert all("simulators=auto" in check.remedy for check in found.values())


def test_an_llm_program_is_missed_only_when_it_is_wanted(tmp_path: Path) -> None:
    off = llm_checks(settings(tmp_path), {"PATH": ""})
    assert {check.status for check in off.values()} == {Status.OK}
    assert "llm=on" in off["llm.codex"].detail and "general" in off["llm.codex"].detail
    on = llm_checks(settings(tmp_path, llm="on"), {"PATH": ""})
    assert on["llm.codex"].status is Status.FAIL
    assert "npm install" in on["llm.codex"].remedy
    assert on["llm.claude"].status is on["llm.opencode"].status is Status.OK, "no butler asks for them"


def test_an_llm_program_on_the_path_is_found(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "codex")
    check = llm_checks(settings(tmp_path, llm="on"), {"PATH": path})["llm.codex"]
    assert (check.status, check.detail.split(";")[0]) == (Status.OK, "found")


def test_a_configured_command_is_looked_for_instead(tmp_path: Path) -> None:
    folder = tmp_path / "roster" / "general"
    folder.mkdir(parents=True)
    source = (shipped_roster() / "general" / "butler.toml").read_text()
    (folder / "butler.toml").write_text(source.replace('type = "codex"', 'type = "codex"\ncommand = "my-codex"'))
    roster = load_roster(tmp_path / "roster")
    chosen = settings(tmp_path, llm="on")
    environment = {"PATH": program(tmp_path / "bin", "codex")}
    (check,) = [c for c in checks.llm_programs(chosen, roster, environment) if c.name == "llm.codex"]
    assert check.status is Status.FAIL
    assert "my-codex" in check.detail


def test_butlers_of_one_system_share_one_database(tmp_path: Path) -> None:
    for name in ("general", "health"):
        folder = tmp_path / "roster" / name
        folder.mkdir(parents=True)
        source = (shipped_roster() / name / "butler.toml").read_text()
        (folder / "butler.toml").write_text(source.replace('name = "butlers"', f'name = "of_{name}"'))
    check = checks.database(settings(tmp_path), load_roster(tmp_path / "roster"), Places(tmp_path))
    assert check.status is Status.FAIL
    assert "of_general, of_health" in check.detail


def test_a_roster_with_a_mistake_fails_and_spares_what_depends_on_it(tmp_path: Path) -> None:
    folder = tmp_path / "roster" / "general"
    folder.mkdir(parents=True)
    (folder / "butler.toml").write_text("[butler]\nsurprise = 1\n")
    found = {c.name: c for c in checks.examine(settings(tmp_path, roster=tmp_path / "roster"), {"PATH": ""})}
    assert found["roster"].status is Status.FAIL
    assert "butler.toml" in found["roster"].detail
    assert not [name for name in found if name.startswith(("port.", "credentials.", "llm."))]


def test_tokens_before_the_first_start_private_and_exposed(tmp_path: Path) -> None:
    places = Places(tmp_path)
    assert checks.tokens(places).status is Status.OK
    TokenFile(places.tokens, ManualClock()).issue("anna", Role.CLIENT)
    assert checks.tokens(places) == Check(name="tokens", status=Status.OK, detail="1 callers, private")
    places.tokens.chmod(0o644)
    exposed = checks.tokens(places)
    assert exposed.status is Status.FAIL
    assert "chmod 600" in exposed.remedy


def test_a_damaged_token_file_fails(tmp_path: Path) -> None:
    places = Places(tmp_path)
    TokenFile(places.tokens, ManualClock()).issue("anna", Role.CLIENT)
    places.tokens.write_text("{")
    assert checks.tokens(places).status is Status.FAIL


def test_whether_sessions_can_see_the_data_directory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places(tmp_path)
    expected = Status.OK if probe([tmp_path]) == "" else Status.WARN
    assert checks.sessions(places).status is expected
    monkeypatch.setattr(checks, "probe", lambda _hidden: "unshare: Operation not permitted")
    told = checks.sessions(places)
    assert (told.name, told.status) == ("llm.confined", Status.WARN)
    assert "Operation not permitted" in told.detail and "namespaces" in told.remedy
