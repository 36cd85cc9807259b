"""What `butlers` says without a command."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from butlers import __version__
from butlers.daemon.cli import app


def test_the_version_is_shown_without_a_command() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"butlers {__version__}\n")


@pytest.mark.parametrize("group", ["backfill", "dead-letters", "approvals"])
def test_a_group_without_a_command_shows_its_commands(group: str) -> None:
    result = CliRunner().invoke(app, [group])
    assert "Missing command" not in result.output
    assert "Usage" in result.output
