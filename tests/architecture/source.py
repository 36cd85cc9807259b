"""The source as data, for the tests beside this file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "butlers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    path: str  # below src/butlers, with slashes
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        return ".".join(("butlers", *Path(self.path).with_suffix("").parts)).removesuffix(".__init__")

    @property
    def references(self) -> tuple[tuple[int, str], ...]:
        return _references_of(self.tree)


@cache
def source_files() -> tuple[SourceFile, ...]:
    """Every Python file of the package."""
    return tuple(read_source(path) for path in sorted(PACKAGE.rglob("*.py")))


def read_source(path: Path) -> SourceFile:
    text = path.read_text(encoding="utf-8")
    return SourceFile(path=path.relative_to(PACKAGE).as_posix(), text=text, tree=ast.parse(text))


@cache
def _references_of(tree: ast.Module) -> tuple[tuple[int, str], ...]:
    return tuple(references(tree))


def references(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported that the code refers to, whatever it was imported as."""
    known = dict(_imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and (name := _dotted(node, known)):
            yield node.lineno, name


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname or alias.name.partition(".")[0]), (alias.name if alias.asname else _first(alias))
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield (alias.asname or alias.name), f"{node.module}.{alias.name}"


def _first(alias: ast.alias) -> str:
    return alias.name.partition(".")[0]


def _dotted(node: ast.expr, known: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value, known)):
        return f"{owner}.{node.attr}"
    return None


def last_name(node: ast.expr) -> str:
    """`queries` for `self.queries`, `x` for `x`, nothing for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
