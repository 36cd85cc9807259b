"""How the command line fails: in words for people, in JSON for machines, with the same exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from butlers.daemon.cli.exits import asks_for_json, run_guarded
from butlers.errors import ClassifiedError, ConfigurationError, TargetUnavailable, ValidationError
from tests.integration.processes.command import butlers_here


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (ValidationError("wrong"), 2, "validation_error"),
        (TargetUnavailable("away", retry_after=3), 4, "target_unavailable"),
        (ConfigurationError("wrong", source="file", key="key", remedy="mend it"), 3, "configuration_error"),
        (FileNotFoundError(2, "No such file", "here"), 3, "configuration_error"),
    ],
)
def test_the_exit_code_is_the_same_for_people_and_machines(
    error: ClassifiedError, code: int, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing() -> None:
        raise error

    assert run_guarded(failing) == code
    told = capsys.readouterr()
    assert (told.out, told.err.startswith("butlers: ")) == ("", True)
    assert run_guarded(failing, as_json=True) == code
    told = capsys.readouterr()
    described = json.loads(told.out)["error"]
    assert (told.err, described["class"]) == ("", kind)
    assert described["message"]
    assert "retryable" in described


def test_json_is_asked_for_before_the_end_of_options() -> None:
    assert asks_for_json(["deliveries", "list", "--json"])
    assert not asks_for_json(["ingest", "--", "--json"])


def test_no_system_and_no_command_are_errors_for_machines_too(tmp_path: Path) -> None:
    absent = butlers_here("deliveries", "list", "--json", "--data-dir", tmp_path)
    error = json.loads(absent.stdout)["error"]
    assert (absent.returncode, absent.stderr, error["class"]) == (3, "", "configuration_error")
    assert (error["key"], error["remedy"]) == (str(tmp_path), "start one with: butlers up")
    unknown = butlers_here("surprise", "--json")
    assert (unknown.returncode, "surprise" in json.loads(unknown.stdout)["error"]["message"]) == (2, True)
