"""The scripts' own logic, in a copy of the project whose Python only writes down how it was called."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
_STUB = """#!/bin/sh
echo "$(basename "$0") $*" >> "{log}"
exit 0
"""


class Copy:
    """Real scripts, a real lock file, and a virtual environment of stubs."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._log = root / "calls.log"
        shutil.copytree(REPOSITORY / "scripts", root / "scripts")
        for name in ("pyproject.toml", "requirements.lock", "requirements-dev.lock"):
            shutil.copy(REPOSITORY / name, root / name)
        (root / "benchmarks").mkdir()
        (root / "benchmarks" / "ingest.py").touch()
        (root / ".venv" / "bin").mkdir(parents=True)
        for name in ("python", "butlers"):
            stub = root / ".venv" / "bin" / name
            stub.write_text(_STUB.format(log=self._log))
            stub.chmod(0o755)

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        self._log.write_text("")
        command = [str(self._root / "scripts" / script), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd="/")

    @property
    def calls(self) -> list[str]:
        return self._log.read_text().splitlines()


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    copied = Copy(tmp_path)
    for arguments in ((), ("--dev",)):
        completed = copied.run("install", *arguments)
        assert completed.returncode == 0, completed.stderr
        assert any("--require-hashes" in call for call in copied.calls)
    return copied


@pytest.mark.parametrize("arguments", [(), ("--dev",)])
def test_install_does_nothing_when_it_is_current(copy: Copy, arguments):
    completed = copy.run("install", *arguments)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
    assert copy.calls == []


def test_install_works_again_when_the_lock_changed(copy: Copy, tmp_path):
    for name in ("requirements.lock", "requirements-dev.lock"):
        with (tmp_path / name).open("a") as lock:
            lock.write("# changed\n")
    assert "installed" in copy.run("install").stderr
    assert any("requirements.lock" in call for call in copy.calls)


def test_install_has_nothing_to_do_when_the_test_tools_are_current(copy: Copy, tmp_path):
    (tmp_path / ".venv" / ".stamp-requirements.lock").unlink()
    assert copy.run("install").stderr == ""
    assert copy.calls == []


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        ([], "butlers up"),
        (["--port-offset", "5"], "butlers up --port-offset 5"),
        (["demo", "--json"], "butlers demo --json"),
    ],
)
def test_run_starts_everything_or_takes_the_tour(copy: Copy, arguments, call):
    assert copy.run("run", *arguments).returncode == 0
    assert [line.strip() for line in copy.calls] == [call]


def test_test_hands_its_arguments_to_pytest(copy: Copy):
    assert copy.run("test", "tests/unit", "-k", "a b").returncode == 0
    assert copy.calls == ["python -m pytest --numprocesses 3 --dist loadscope -m not heavy tests/unit -k a b"]
    assert copy.run("test", "--heavy", "-x").returncode == 0
    assert copy.calls == ["python -m pytest --numprocesses 3 --dist loadscope -m heavy --timeout 1200 -x"]


def test_bench_without_a_name_lists_them(copy: Copy):
    completed = copy.run("bench")
    assert completed.returncode == 2
    assert completed.stdout.splitlines()[1:] == ["  ingest"]
    assert copy.calls == []


def test_bench_refuses_an_unknown_name(copy: Copy):
    completed = copy.run("bench", "nosuch")
    assert completed.returncode == 2
    assert "no benchmark called 'nosuch'" in completed.stderr
    assert copy.calls == []


def test_bench_runs_the_one_that_is_named(copy: Copy):
    assert copy.run("bench", "ingest", "--rows", "5").returncode == 0
    assert copy.calls == ["python -m benchmarks.ingest --rows 5"]
