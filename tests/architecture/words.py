"""Words that a reader would have to learn: `python -m tests.architecture.words` lists where they are.

The field has a word for nearly everything here. An identifier is refused when one of its parts is banned, prose
(docstrings, comments, pages) when it holds a banned phrase. A word stays where the source documents or the wire use it
(`ALLOWED`).
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import PACKAGE, ROOT

# Part of an identifier -> what to write instead.
IDENTIFIERS = {
    "wish": "request",
    "stance": "budget mode",
    "deed": "action",
    "verdict": "decision",
    "verdicts": "decisions",
    "judge": "decide",
    "judged": "decided",
    "judgement": "decision",
    "judgements": "decisions",
    "ledger": "state",
    "farewell": "shutdown grace",
    "nap": "backoff",
    "weather": "faults",
    "witness": "ground truth",
    "tour": "demo",
    "surface": "tools",
    "desk": "tools",
    "whoever": "the actor's name",
    "somebody": "the actor's name",
    "anybody": "the actor's name",
    "dissatisfied": "needs_attention",
    "remembering": "memory capture",
    "said": "text, message, tokens or reported",
    "unsaid": "default",
    "told": "answer, document, details or shown",
    "heard": "received or last seen",
    "kept": "stored, remaining or retention",
    "wanted": "arguments, requested, needed or expected",
}
PROSE = re.compile(r"\b(?:verdicts?|deeds?|stances?|farewells?|naps?|last words|late yes)\b", re.IGNORECASE)
# (word, file or folder, reason)
ALLOWED: tuple[tuple[str, str, str], ...] = (
    ("verdict", "src/butlers/messenger/delivery.py", "the key under which a delivery's decisions are stored and shown"),
)

_CODE = re.compile(r"`[^`]*`|\{[a-z_]+\}")  # names on the wire, in tables and in the log
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names that a file gives: functions, classes, parameters, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings and comments of Python, line by line."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
            yield from enumerate(token.string.splitlines(), start=token.start[0])


def found_in(path: str, text: str) -> Iterator[str]:
    if path.endswith(".py"):
        for number, name in identifiers(ast.parse(text)):
            for part in (part.lower() for part in _PARTS.findall(name)):
                if part in IDENTIFIERS and not _allowed(part, path):
                    yield f"{path}:{number} {name}: say {IDENTIFIERS[part]}"
    lines = prose(text) if path.endswith(".py") else enumerate(text.splitlines(), start=1)
    for number, line in lines:
        for match in PROSE.finditer(_CODE.sub("", line)):
            if not _allowed(match[0].lower(), path):
                yield f"{path}:{number} {match[0]!r} in a sentence"


def _allowed(word: str, path: str) -> bool:
    return any(word == allowed and path.startswith(place) for allowed, place, _reason in ALLOWED)


def files() -> Iterator[Path]:
    yield from sorted(PACKAGE.rglob("*.py"))
    yield from sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions")
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md")


def every_banned_word() -> list[str]:
    return [
        found
        for path in files()
        for found in found_in(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]


if __name__ == "__main__":
    listed = every_banned_word()
    print("\n".join(listed) or "no banned word")
    sys.exit(bool(listed))
