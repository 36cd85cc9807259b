"""The rules of butler.toml at the door that counts: `butlers up` refuses to start, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from butlers.daemon.cli import main
from butlers.daemon.cli.exits import CONFIGURATION
from butlers.daemon.settings import shipped_roster
from butlers.roster import load_roster
from tests.ports import free_port

SECRET = "123456:correct-horse-battery-staple"
BOT = 'token_env = "BUTLER_TELEGRAM_TOKEN"'
LETTERS = 'address_env = "BUTLER_EMAIL_ADDRESS"\npassword_env = "BUTLER_EMAIL_PASSWORD"'
READY_S = 60


@pytest.fixture
def roster(tmp_path: Path) -> Path:
    """A copy of the shipped roster, to be spoilt."""
    return Path(shutil.copytree(shipped_roster(), tmp_path / "roster"))


def change(roster: Path, butler: str, old: str, new: str) -> None:
    file = roster / butler / "butler.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def arguments(tmp_path: Path) -> list[str]:
    return ["up", "--data-dir", str(tmp_path / "data"), "--set", f"roster={tmp_path / 'roster'}"]


def up(tmp_path: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "butlers.daemon.cli", *arguments(tmp_path), *options]
    strangers = ("BUTLER", "USER_", "DATABASE_URL", "OTEL_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(strangers)}
    return subprocess.Popen(
        command, env=environment | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def refused(tmp_path: Path, *options: str, **variables: str) -> str:
    process = up(tmp_path, *options, **variables)
    printed, words = process.communicate(timeout=READY_S)
    assert process.returncode == CONFIGURATION, words
    assert printed == ""
    assert "Traceback" not in words
    assert not (tmp_path / "data" / "postgres").exists(), "nothing was started"
    return words


def refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """As typed, but in this process: the roster is read before anything else happens."""
    monkeypatch.setattr("sys.argv", ["butlers", *arguments(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    printed, words = capsys.readouterr()
    assert (ended.value.code, printed) == (CONFIGURATION, "")
    assert not (tmp_path / "data").exists()
    return words


@pytest.mark.scenario("M1-040")
def test_a_bad_name_of_an_environment_variable_stops_the_start(
    tmp_path: Path, roster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change(roster, "messenger", BOT, f'token_env = "{SECRET}"')
    words = refused_at_once(tmp_path, monkeypatch, capsys)
    assert "messenger/butler.toml: modules.telegram.bot.token_env: must be the name of an environment variable" in words
    assert SECRET not in words


@pytest.mark.scenario("M1-041")
def test_a_secret_in_butler_toml_stops_the_start(
    tmp_path: Path, roster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change(roster, "messenger", BOT, f'token = "{SECRET}"')
    words = refused_at_once(tmp_path, monkeypatch, capsys)
    assert "messenger/butler.toml: modules.telegram.bot.token: secrets must not stand in butler.toml" in words
    assert SECRET not in words


@pytest.mark.slow
@pytest.mark.scenario("M1-042")
def test_a_missing_value_of_an_enabled_scope_stops_the_start(tmp_path: Path, roster: Path) -> None:
    credentials = {"BUTLER_TELEGRAM_TOKEN": SECRET, "BUTLER_EMAIL_ADDRESS": "butler@butlers.example"}
    words = refused(tmp_path, **credentials)
    assert "modules.email.bot.password_env: environment variable BUTLER_EMAIL_PASSWORD is not set" in words
    assert SECRET not in words


@pytest.mark.slow
@pytest.mark.scenario("M1-042")
def test_a_disabled_scope_requires_nothing(tmp_path: Path, roster: Path) -> None:
    for door in ("switchboard", "messenger"):
        change(roster, door, BOT, f"enabled = false\n{BOT}")
        change(roster, door, LETTERS, f"enabled = false\n{LETTERS}")
    ports = [f"--port={name}={free_port()}" for name in load_roster(roster)]
    process = up(tmp_path, "--set", "simulators=off", "--set", "database_durable=false", *ports)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "butlers is up\n"
        process.send_signal(signal.SIGINT)
        _, words = process.communicate(timeout=READY_S)
        assert process.returncode == 0, words
    finally:
        process.kill()
        process.communicate()
