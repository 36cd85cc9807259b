"""Every regular expression of the repository: found in the source, and caught while `src` is imported.

Patterns of `src` that modules compile are caught as they are compiled, so that parts, f-strings and helpers do not hide
them; those that functions write down are read from the source, with a word in the place of what is only known later.

Run as a program it is the part of `scripts/check` that refuses what the supported Pythons read differently.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "butlers"
FOLDERS = ("src", "tests", "benchmarks")
FUNCTIONS = frozenset({"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"})
_MAY_CALL = re.compile(r"\bre\.|\bpytest\.")  # a file without either has no pattern, and need not be parsed
UNKNOWN = "name"  # in the place of a value that only a running program knows
# The `re` of 3.11.0 to 3.11.4 finds too little with these, and no other construct differs between 3.11 and 3.13.
REFUSED = {"POSSESSIVE_REPEAT": "a possessive repeat", "ATOMIC_GROUP": "an atomic group"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A pattern and where it stands."""

    place: str  # path:line
    pattern: str | bytes
    flags: int = 0

    def compiled(self) -> re.Pattern[Any]:
        return re.compile(self.pattern, self.flags)


def parsed(pattern: str | bytes, flags: int = 0) -> Any:
    """The tree of a pattern; its module has had no other name since 3.11."""
    return re._parser.parse(pattern, flags)  # type: ignore[attr-defined]


# --- in the source ---------------------------------------------------------------------------------------------------


def written(path: Path, code: str | None = None) -> Iterator[Found]:
    """The patterns that a file gives to a function of `re`, and to `pytest.raises`."""
    for place, node, pattern in _calls(path, code):
        if pattern is not None:
            yield Found(place=place, pattern=pattern, flags=_flags_of(node))


def unreadable(path: Path) -> Iterator[str]:
    """Where a file gives `re` something that only a running program knows."""
    return (place for place, _, pattern in _calls(path) if pattern is None)


@cache
def _calls(path: Path, code: str | None = None) -> tuple[tuple[str, ast.Call, str | bytes | None], ...]:
    text = path.read_text(encoding="utf-8") if code is None else code
    if not _MAY_CALL.search(text):
        return ()
    tree = ast.parse(text)
    known = dict(_module_texts(tree))
    return tuple(
        (_place(path, node.lineno), node, _text_of(pattern, known))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (pattern := _pattern_argument(node)) is not None
    )


def _pattern_argument(node: ast.Call) -> ast.expr | None:
    called = node.func
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return None
    if called.value.id == "re" and called.attr in FUNCTIONS and node.args:
        return node.args[0]
    matches = [word.value for word in node.keywords if word.arg == "match"]
    return matches[0] if called.value.id == "pytest" and matches else None


def _module_texts(tree: ast.Module) -> Iterator[tuple[str, str | bytes]]:
    known: dict[str, str | bytes] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            text = _text_of(node.value, known)
            if text is not None:
                known[node.targets[0].id] = text
                yield node.targets[0].id, text


def _text_of(node: ast.expr, known: dict[str, str | bytes]) -> str | bytes | None:
    """What an expression says; None when it is no text at all."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str | bytes) else None
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.JoinedStr):
        return "".join(_piece(value, known) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text_of(node.left, known), _text_of(node.right, known)
        if isinstance(left, str) and isinstance(right, str | None):
            return left + (UNKNOWN if right is None else right)
        if isinstance(right, str):
            return UNKNOWN + right
    return None


def _piece(value: ast.expr, known: dict[str, str | bytes]) -> str:
    inner = value.value if isinstance(value, ast.FormattedValue) else value
    text = _text_of(inner, known)
    return text if isinstance(text, str) else UNKNOWN


def _flags_of(node: ast.Call) -> int:
    given = [*node.args[1:], *(word.value for word in node.keywords)]
    names = {part.attr for each in given for part in ast.walk(each) if isinstance(part, ast.Attribute)}
    return sum({int(getattr(re, name)) for name in names if name.isupper()})


# --- while the package is imported -----------------------------------------------------------------------------------


def compiled_by(modules: Callable[[], None], under: Path = PACKAGE) -> list[Found]:
    """What code below a folder compiles while `modules` runs; modules that were imported before compile nothing."""
    caught: list[Found] = []
    honest = re.compile

    def watching(pattern: Any, flags: Any = 0) -> Any:
        frame = sys._getframe(1)
        path = Path(frame.f_code.co_filename)
        result = honest(pattern, flags)
        if path.is_relative_to(under):
            caught.append(Found(place=_place(path, frame.f_lineno), pattern=result.pattern, flags=int(flags)))
        return result

    re.compile = watching
    try:
        modules()
    finally:
        re.compile = honest
    return caught


def import_package() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name != "__main__.py":
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def every_pattern() -> tuple[list[Found], list[str]]:
    """All of `src`, and the places of what cannot be seen; to be called in a process that has imported none of it."""
    paths = sorted(PACKAGE.rglob("*.py"))
    caught = compiled_by(import_package)
    places = {found.place for found in caught}
    read = [found for path in paths for found in written(path) if found.place not in places]
    unseen = [place for path in paths for place in unreadable(path) if place not in places]
    return list({(found.pattern, found.flags): found for found in (*read, *caught)}.values()), unseen


# --- what the supported Pythons read differently ---------------------------------------------------------------------


def refused(found: Found) -> Iterator[str]:
    names = {str(name) for name in _names(parsed(found.pattern, found.flags))}
    for name in sorted(names & REFUSED.keys()):
        yield f"{found.place}: the pattern has {REFUSED[name]}, which Python 3.11.0 to 3.11.4 misread; write it without"


def _names(tree: Any) -> Iterator[Any]:
    for name, argument in tree:
        yield name
        yield from (inner for part in _parts(argument) for inner in _names(part))


def _parts(argument: Any) -> Iterator[Any]:
    if hasattr(argument, "data"):
        yield argument
    elif isinstance(argument, list | tuple):
        for each in argument:
            yield from _parts(each)


def _place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}"


def complaints_of(code: str) -> list[str]:
    return [line for found in written(Path("x.py"), code) for line in refused(found)]


def main() -> int:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    complaints = [line for path in files for found in written(path) for line in refused(found)]
    print("\n".join(complaints) or f"{len(files)} files: no pattern that Pythons read differently")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
