"""`butlers --version` needs no command."""

from __future__ import annotations

from typer.testing import CliRunner

from butlers import __version__
from butlers.daemon.cli import app


def test_the_version_is_shown_without_a_command() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"butlers {__version__}\n")
