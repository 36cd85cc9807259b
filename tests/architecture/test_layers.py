"""The layers of the architecture, as import-linter's contracts in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tests.architecture.source import PACKAGE, ROOT

CONFIGURATION = ROOT / "pyproject.toml"


def contracts() -> list[dict[str, Any]]:
    document = tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = document["tool"]["importlinter"]["contracts"]
    return found


def test_every_contract_is_kept() -> None:
    # In a process of its own: the linter switches off every logger that exists.
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--config", str(CONFIGURATION), "--no-cache"]
    linted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert f"Contracts: {len(contracts())} kept, 0 broken." in linted.stdout


def test_every_part_of_the_package_stands_in_a_layer() -> None:
    """A new package that no layer names would be free to import anything."""
    [layers] = [contract["layers"] for contract in contracts() if contract["type"] == "layers"]
    named = {name.strip() for layer in layers for name in layer.split("|")}
    parts = _parts_of(PACKAGE, "butlers")
    # Channels stand in two places: what a channel is below the contracts, the folders of channels above the systems.
    parts = (parts - {"butlers.channels"}) | _parts_of(PACKAGE / "channels", "butlers.channels")
    assert parts == named


def _parts_of(package: Path, name: str) -> set[str]:
    return {f"{name}.{path.stem}" for path in package.iterdir() if _is_part(path)}


def _is_part(path: Path) -> bool:
    return not path.name.startswith("_") and (path.suffix == ".py" or (path / "__init__.py").exists())


def test_systems_do_not_import_each_other() -> None:
    """`|` makes siblings independent; `:` would let them know each other."""
    [layers] = [contract["layers"] for contract in contracts() if contract["type"] == "layers"]
    assert not [layer for layer in layers if ":" in layer]
