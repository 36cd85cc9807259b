"""`butlers doctor` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from butlers.daemon import checks as checks_module
from butlers.daemon.cli import main
from butlers.daemon.machine_checks import Check, Status

FINE = Check(name="python", status=Status.OK, detail="3.11.9")
DOUBT = Check(name="java", status=Status.WARN, detail="no Java", remedy="install one")
BROKEN = Check(name="port.general", status=Status.FAIL, detail="taken [red]", remedy="free it")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setattr("sys.argv", ["butlers", "doctor", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    checks: list[Check] = []
    monkeypatch.setattr(checks_module, "examine", lambda _settings, _environment: tuple(checks))
    return checks


@pytest.mark.parametrize(("checks", "code"), [([FINE], 0), ([FINE, DOUBT], 0), ([FINE, BROKEN, DOUBT], 1)])
def test_the_exit_code_counts_failures_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: list[Check], checks: Any, code: int
) -> None:
    found += checks
    assert run(monkeypatch, "--json") == code
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "checks": [{"name": c.name, "status": c.status.value, "detail": c.detail, "remedy": c.remedy} for c in checks],
        "ok": code == 0,
    }


def test_people_get_a_table_that_takes_no_markup_from_a_detail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: list[Check]
) -> None:
    found += [FINE, DOUBT, BROKEN]
    monkeypatch.setenv("COLUMNS", "120")
    assert run(monkeypatch) == 1
    printed = capsys.readouterr().out
    assert "taken [red]" in printed and "free it" in printed and "install one" in printed
    assert printed.endswith("1 ok, 1 warn, 1 fail\n")


def test_a_wrong_setting_is_a_failed_check_and_no_stack_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "--json", "--data-dir", str(tmp_path), "--set", "surprise=1") == 1
    document = json.loads(capsys.readouterr().out)
    (check,) = document["checks"]
    assert (check["name"], check["status"], document["ok"]) == ("settings", "fail", False)
    assert "surprise" in check["detail"]


def test_the_settings_reach_the_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Any] = []

    def examine(settings: Any, _environment: Any) -> tuple[Check, ...]:
        seen.append(settings)
        return ()

    monkeypatch.setattr(checks_module, "examine", examine)
    assert run(monkeypatch, "--data-dir", str(tmp_path), "--port-offset", "77", "--port", "general=5", "--json") == 0
    (settings,) = seen
    assert (settings.data_dir, settings.port_offset, settings.ports) == (tmp_path, 77, {"general": 5})
