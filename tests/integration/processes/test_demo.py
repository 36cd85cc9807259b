"""The tour: what a newcomer sees first."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from butlers.daemon.demo.instance import clean_environment


@pytest.mark.slow
@pytest.mark.timeout(180)  # with a start of Java
def test_demo_ends_with_one_line_for_machines(tmp_path):
    completed = subprocess.run(
        [sys.executable, "-m", "butlers.daemon.cli", "demo", "--json"],
        capture_output=True,
        text=True,
        env=clean_environment() | {"TMPDIR": str(tmp_path)},
        timeout=170,
    )
    assert completed.returncode == 0, completed.stderr
    verdict = json.loads(completed.stdout.splitlines()[-1])
    assert verdict["passed"] == verdict["total"] == len(verdict["lines"])
    assert {"crash", "statistics", "stop"} <= {line["name"] for line in verdict["lines"]}
    assert all(line["passed"] and line["detail"] for line in verdict["lines"])
    assert not list(tmp_path.glob("butlers-demo-*"))
    assert "butlers: crash ..." in completed.stderr  # slow steps are announced
