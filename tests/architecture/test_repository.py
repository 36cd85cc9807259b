"""What the repository must not give away, and what its lock files must hold.

Every forbidden word below is written in two pieces, so that this file does not offend against itself.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

_HOSTS = ("py" + "pi.", "python" + "hosted.", "ana" + "conda.org", "npm" + "js.", "arti" + "factory")
INDEX_HOSTS = re.compile(r"\b(?:" + "|".join(map(re.escape, _HOSTS)) + ")")
INDEX_OPTIONS = re.compile(r"(?<!no-emit-)\b(?:extra-)?index-" + r"url\b|--find-" + r"links\b")
MACHINE_PATHS = re.compile(r"(?<![\w./}-])/(?:wo" + "rk|ro" + r"ot)\b|\.py" + r"env\b|/opt/(?:py" + "pi|whe" + "els)")
OWN_PATH = re.compile(re.escape(str(ROOT)) + r"\b")

LOCKS = ("requirements.lock", "requirements-dev.lock")
PIN = re.compile(r"(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>\S+)(?P<marker> ; [^\\]+)?(?: \\)?")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?")


@cache
def repository_files() -> tuple[Path, ...]:
    """Everything that is or would be committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout: there is no list of files to look at")
    paths = (ROOT / name for name in listing.stdout.decode().split("\0") if name)
    return tuple(path for path in paths if path.is_file())


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path in repository_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_file_names_a_package_index() -> None:
    assert lines_with(INDEX_HOSTS) == []
    assert lines_with(INDEX_OPTIONS) == []


def test_no_file_names_a_path_of_this_machine() -> None:
    assert lines_with(MACHINE_PATHS) == []
    if len(ROOT.parts) > 2:  # a checkout right below / would forbid words such as /build
        assert lines_with(OWN_PATH) == []


def test_the_checks_see_what_they_look_for() -> None:
    assert INDEX_HOSTS.search("https://py" + "pi.org/simple")
    assert INDEX_HOSTS.search("https://files.python" + "hosted.org/x.whl")
    assert INDEX_OPTIONS.search("--index-" + "url http://example.org")
    assert not INDEX_OPTIONS.search("--no-emit-index-" + "url")
    for path in ("/wo" + "rk/main", "cd /ro" + "ot", "~/.py" + "env/versions"):
        assert MACHINE_PATHS.search(path), path
    assert not MACHINE_PATHS.search("a/ro" + "ot and the net/wo" + "rk")


# --- lock files ------------------------------------------------------------------------------------------------------


def pins(lock: str) -> Iterator[tuple[str, str, int]]:
    """(name, version, number of hashes) of every requirement; any other line is a mistake."""
    current: tuple[str, str] | None = None
    hashes = 0
    for line in (ROOT / lock).read_text(encoding="utf-8").splitlines():
        if not line or line.lstrip().startswith("#"):
            continue
        if HASH.fullmatch(line):
            hashes += 1
            continue
        if current is not None:
            yield *current, hashes
        pin = PIN.fullmatch(line)
        assert pin is not None, f"{lock}: {line!r} is neither a pin nor a hash"
        current, hashes = (pin["name"], pin["version"]), 0
    assert current is not None
    yield *current, hashes


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_pinned_with_hashes_and_nothing_else_stands_there(lock: str) -> None:
    assert [name for name, _, hashes in pins(lock) if hashes == 0] == []


def test_lock_files_hold_what_pyproject_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = set(map(_name, project["dependencies"]))
    assert wanted <= {name for name, _, _ in pins("requirements.lock")}
    wanted |= set(map(_name, project["optional-dependencies"]["dev"]))
    assert wanted <= {name for name, _, _ in pins("requirements-dev.lock")}


def test_both_lock_files_name_the_same_versions() -> None:
    used = {(name, version) for name, version, _ in pins("requirements.lock")}
    assert used <= {(name, version) for name, version, _ in pins("requirements-dev.lock")}


def test_the_readme_names_the_supported_pythons() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [line.rpartition(" ")[2] for line in project["classifiers"] if " :: Python :: 3." in line]
    named = f"Python {', '.join(versions[:-1])} or {versions[-1]}"

    assert project["requires-python"] == f">={versions[0]}"
    assert named in (ROOT / "README.md").read_text(encoding="utf-8")
    assert named in " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())


def test_the_set_up_insists_on_the_hashes() -> None:
    assert "--require-hashes" in (ROOT / "scripts" / "install").read_text(encoding="utf-8")


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()
