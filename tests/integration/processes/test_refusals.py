"""Commands that cannot do what they are asked: one plain message, and an exit code that says whose turn it is."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from butlers.daemon.demo.instance import clean_environment
from tests.integration.processes.command import butlers, butlers_here, pretend_running, write_settings

ASKING = (["status"], ["requests"], ["ingest", "hello"], ["trace", "00000000-0000-7000-8000-000000000000"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["status", "--nosuch"],
        ["ingest"],
        ["trace"],
        ["run"],
        ["requests", "--limit", "0"],
        ["requests", "--limit", "many"],
        ["requests", "--state", "lost"],
        ["up", "--port-offset", "high"],
        ["token", "issue", "ann", "--role", "king"],
    ],
)
def test_usage_errors(arguments, tmp_path):
    completed = butlers_here(*arguments, environment={"XDG_DATA_HOME": str(tmp_path)})
    assert completed.returncode == 2
    assert "Usage:" in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["ingets", "hello"], "'ingest'"),
        (["pipeline", "runn"], "'run'"),
        (["token", "isue", "ann"], "'issue'"),
        (["up", "--dta-dir", "x"], "--data-dir"),
        (["doctor", "--jsn"], "--json"),
        (["pipeline", "run", "books", "--memry", "2g"], "--memory"),
    ],
)
def test_what_does_not_exist_is_answered_with_what_is_near(arguments, near, tmp_path):
    completed = butlers_here(*arguments, environment={"XDG_DATA_HOME": str(tmp_path)})
    assert (completed.returncode, near in completed.stderr) == (2, True)
    machine = butlers_here(*arguments, "--json", environment={"XDG_DATA_HOME": str(tmp_path)})
    assert (machine.returncode, near in json.loads(machine.stdout)["error"]["message"]) == (2, True)


@pytest.mark.parametrize(
    ("host", "says"),
    [("no-such-host.invalid", "the host's name is unknown"), ("192.0.2.7", "this machine has no such address")],
)
def test_a_host_that_is_not_ours_is_told_as_such(host, says, tmp_path):
    """The port is not to blame, so no other port is recommended; and nobody waits for it to become free."""
    completed = butlers("up", "--data-dir", tmp_path / "data", "--set", f"host={host}")
    assert completed.returncode == 3
    assert says in completed.stderr
    assert "set host to an address of this machine" in completed.stderr
    assert "--port" not in completed.stderr
    checks = json.loads(butlers_here("doctor", "--json", "--data-dir", tmp_path, "--set", f"host={host}").stdout)
    (door,) = [check for check in checks["checks"] if check["name"] == "port.switchboard"]
    assert (door["status"], says in door["detail"], "--port" in door["remedy"]) == ("fail", True, False)


def test_a_privileged_port_is_told_as_such(tmp_path):
    """Without the right to it, which root usually has."""
    drop = shutil.which("setpriv")
    if drop is None or os.geteuid() != 0 or _is_unprivileged(81):
        pytest.skip("needs root, setpriv and privileged ports")
    command = [drop, "--bounding-set=-net_bind_service", sys.executable, "-m", "butlers.daemon.cli", "doctor"]
    completed = subprocess.run(
        [*command, "--json", "--data-dir", str(tmp_path), "--port", "switchboard=81"],
        capture_output=True,
        env=clean_environment(),
        timeout=60,
    )
    (check,) = [one for one in json.loads(completed.stdout)["checks"] if one["name"] == "port.switchboard"]
    assert (check["status"], "ports below 1024 are privileged" in check["detail"]) == ("fail", True)
    assert "CAP_NET_BIND_SERVICE" in check["remedy"]


def _is_unprivileged(port: int) -> bool:
    return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= port


@pytest.mark.parametrize("arguments", ASKING)
def test_no_system_in_the_data_directory(arguments, tmp_path):
    completed = butlers_here(*arguments, "--data-dir", tmp_path / "unknown")
    assert completed.returncode == 3
    assert completed.stderr == (
        f"butlers: --data-dir: {tmp_path / 'unknown'}: no system is running here (start one with: butlers up)\n"
    )
    assert not (tmp_path / "unknown").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"pid": "one"}',
        b'{"pid": 99999999999999999999}',
        b'{"pid": OURS}',
        b'{"pid": OURS, "doors": [], "simulators": {}}',
        json.dumps({"pid": 2**22 + 1, "doors": {}, "simulators": {}}).encode(),
    ],
)
def test_a_damaged_or_stale_run_file_counts_as_no_system(content, tmp_path):
    (tmp_path / "run.json").write_bytes(content.replace(b"OURS", b"%d" % os.getpid()))
    completed = butlers_here("status", "--data-dir", tmp_path)
    assert completed.returncode == 3
    assert "no system is running here" in completed.stderr


def test_a_system_without_switchboard_is_told_apart(tmp_path):
    pretend_running(tmp_path, {"general": "http://127.0.0.1:9"})
    completed = butlers_here("requests", "--data-dir", tmp_path)
    assert completed.returncode == 3
    assert "butlers run switchboard" in completed.stderr


@pytest.mark.parametrize("arguments", ASKING)
def test_a_system_that_does_not_answer(arguments, tmp_path):
    with socket.socket() as closed:  # bound and not listening: nobody can take the port, nobody answers there
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        pretend_running(tmp_path, {"switchboard": address})
        completed = butlers_here(*arguments, "--data-dir", tmp_path)
    assert completed.returncode == 4
    assert f"{address} did not answer" in completed.stderr


@pytest.mark.parametrize("command", [["up"], ["run", "general"], ["token", "issue", "ann"]])
def test_a_data_directory_that_cannot_be_made(command, tmp_path):
    (tmp_path / "file").write_text("in the way")
    completed = butlers_here(*command, "--data-dir", tmp_path / "file")
    assert completed.returncode == 3
    assert f"{tmp_path / 'file'}: cannot be created" in completed.stderr


@pytest.mark.parametrize("folder", ["up.lock", "logs/butlers.jsonl", "logs/simulators.log"])
def test_a_data_directory_with_something_in_the_way(folder, tmp_path):
    (tmp_path / folder).mkdir(parents=True)
    completed = butlers("up", "--data-dir", tmp_path)
    assert completed.returncode == 3
    assert "Is a directory" in completed.stderr
    assert str(tmp_path) in completed.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            ["up", "--port", "bogus=47999"],
            "ports: bogus: there is no butler and no simulator of this name (choose among",
        ),
        (["run", "general", "--port", "bogus=47999"], "calendar_simulator, courier, finance, general, health,"),
        (["simulate", "--port", "bogus=47999"], "webhook_simulator)"),
        (["up", "--set", "simulators"], "--set simulators: must be NAME=VALUE"),
        (["up", "--set", "surprise=1"], "unknown key"),
        (["up", "--set", "smpt_host=x"], "--set smpt_host: unknown key (did you mean smtp_host"),
        (["up", "--set", "spark_memory=1x"], "--set spark_memory: "),
        (["up", "--port", "switchbord=1"], "did you mean switchboard?"),
        (["up", "--port", "switchboard=99999"], "--port switchboard: "),
        (["up", "--set", "ports=1"], "--port NAME=NUMBER"),
        (["up", "--set", "port_offset=-1"], "--port-offset"),
        (["up", "--config", "/nonexistent.toml"], "/nonexistent.toml: --config: file not found"),
        (["up", "--set", "roster=/nonexistent"], "/nonexistent: roster: no butler.toml found"),
    ],
)
def test_wrong_settings_are_named(command, says, tmp_path):
    completed = butlers_here(*command, "--data-dir", tmp_path)
    assert completed.returncode == 3
    assert says in completed.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["run", "nobody"], "role: no butler is called 'nobody'; there are finance, general,"),
        (["simulate", "pigeons"], "pigeons: no such simulator; there are telegram, mail, calendar, webhook"),
    ],
)
def test_a_name_that_nobody_has_is_wrong_input(command, says, tmp_path):
    completed = butlers_here(*command, "--data-dir", tmp_path)
    assert (completed.returncode, says in completed.stderr) == (2, True)


def test_wrong_options_are_fields_for_machines(tmp_path):
    for command, field in (
        (["requests", "--limit", "0"], "--limit"),
        (["requests", "--nosuch"], "--nosuch"),
        (["simulate", "pigeons"], "pigeons"),
    ):
        completed = butlers_here(*command, "--json", "--data-dir", tmp_path)
        error = json.loads(completed.stdout)["error"]
        assert (completed.returncode, error["fields"][0]["field"]) == (2, field)


def test_a_role_without_credentials_is_told_of_the_simulators(tmp_path):
    completed = butlers_here("run", "messenger", "--data-dir", tmp_path)
    assert completed.returncode == 3
    assert "BUTLER_TELEGRAM_TOKEN is not set" in completed.stderr
    assert "--set simulators=on while `butlers simulate` runs" in completed.stderr


def test_missing_credentials_name_file_key_and_variable(tmp_path):
    completed = butlers("run", "messenger", "--data-dir", tmp_path, "--set", "simulators=off")
    assert completed.returncode == 3
    assert "messenger/butler.toml: modules.telegram.bot.token_env" in completed.stderr
    assert "BUTLER_TELEGRAM_TOKEN is not set" in completed.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [("surprise = 1\n", "surprise: unknown key"), ("port_offset = \n", "not valid TOML"), ("\xff", "not valid TOML")],
)
def test_a_wrong_settings_file_is_named(text, says, tmp_path):
    write_settings(tmp_path, "")
    (tmp_path / "butlers.toml").write_bytes(text.encode("latin-1"))
    completed = butlers_here("up", "--data-dir", tmp_path)
    assert completed.returncode == 3
    assert f"{tmp_path / 'butlers.toml'}: " in completed.stderr
    assert says in completed.stderr
