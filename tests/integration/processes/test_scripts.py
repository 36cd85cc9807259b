"""The scripts' own logic, in a copy of the project whose Python only writes down how it was called."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
_STUB = """#!/bin/sh
echo "$(basename "$0") $*" >> "{log}"
exit 0
"""


# A Python that makes environments of stubs, of the version that it says it is, and is a real one otherwise.
_INTERPRETER = """#!/bin/sh
case "$1 $2" in
"-m venv")
    echo "venv $3" >> "{log}"
    mkdir -p "$3/bin" && cp "{stub}" "$3/bin/python" && echo "version = {version}" > "$3/pyvenv.cfg" ;;
"-c import sys, venv"*) echo "{version} $0" ;;
"-c import platform"*) echo "{version}" ;;
"-V ") echo "Python {version}" ;;
*) exec "{python}" "$@" ;;
esac
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
        (root / ".venv" / "pyvenv.cfg").write_text(f"version = {platform.python_version()}\n")

    def interpreter(self, version: str) -> str:
        """A Python of another version."""
        path = self._root / f"python-{version}"
        stub = shutil.copy(self._root / ".venv" / "bin" / "butlers", self._root / "stub")
        path.write_text(_INTERPRETER.format(log=self._log, stub=stub, version=version, python=sys.executable))
        path.chmod(0o755)
        return str(path)

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        self._log.write_text("")
        command = [str(self._root / "scripts" / script), *arguments]
        environment = {**os.environ, "PYTHON": sys.executable, **variables}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/", env=environment)

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


def test_install_makes_the_environment_anew_for_another_python(copy: Copy, tmp_path: Path):
    other = copy.interpreter("3.12.99")
    (tmp_path / ".venv" / "left-over").touch()

    completed = copy.run("install", PYTHON=other)
    assert completed.returncode == 0, completed.stderr
    assert "venv .venv" in copy.calls
    assert any("--require-hashes" in call for call in copy.calls)
    assert not (tmp_path / ".venv" / "left-over").exists()

    assert copy.run("install", PYTHON=other).stderr == "", "and then it is current"
    assert copy.calls == []


def test_install_keeps_the_environment_of_the_same_python(copy: Copy, tmp_path: Path):
    (tmp_path / ".venv" / ".stamp-requirements-dev.lock").unlink()
    (tmp_path / ".venv" / ".stamp-requirements.lock").unlink()
    (tmp_path / ".venv" / "kept").touch()

    assert "installed" in copy.run("install").stderr
    assert (tmp_path / ".venv" / "kept").exists()


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


def test_every_supported_python_is_tested_in_an_environment_of_its_own(copy: Copy, tmp_path: Path):
    pythons = [copy.interpreter(version) for version in ("3.10.99", "3.12.99", "3.13.99")]

    completed = copy.run("test", "--pythons", "-k", "nothing", BUTLERS_PYTHONS=" ".join(pythons))

    table = completed.stdout.partition("python   result")[2].splitlines()[1:]
    assert [line.split()[:2] for line in table] == [["3.12.99", "green"], ["3.13.99", "green"]], completed.stdout
    assert completed.returncode == 0
    assert sum("pytest" in call and call.endswith("-m not heavy -k nothing") for call in copy.calls) == 2
    assert not (tmp_path / ".venvs" / "3.10.99").exists(), "3.10 is not supported"


def test_one_python_that_fails_is_red_and_fails_all(copy: Copy, tmp_path: Path):
    good, bad = (copy.interpreter(version) for version in ("3.12.99", "3.13.99"))
    Path(bad).write_text(Path(bad).read_text().replace('"-m venv")', '"-m venv") exit 1 ;;\n"-x")'))

    completed = copy.run("test", "--pythons", BUTLERS_PYTHONS=f"{good} {bad}")

    assert completed.returncode == 1
    assert "3.12.99  green" in completed.stdout
    assert "3.13.99  RED" in completed.stdout
