"""Every file that the pages name is there. Decision records are left out: they speak of their day."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import PACKAGE, ROOT

PATH = re.compile(
    r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|sql)|(?:src|tests|docs|roster|scripts|benchmarks)/[\w./-]+|(?:[\w-]+/){2,})`"
)
PLACEHOLDER = re.compile(r"NAME|NNNN|what_it_does")
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#]+)")


def pages() -> list[Path]:
    below = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions"]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(below)]


def missing(page: Path, text: str) -> Iterator[str]:
    """What a page names and the repository does not hold: code by its path, other pages by their links."""
    places = (ROOT, PACKAGE, PACKAGE.parent, page.parent, *(folder for folder in PACKAGE.iterdir() if folder.is_dir()))
    for found in PATH.finditer(text):
        if PLACEHOLDER.search(found[1]) or any((place / found[1]).exists() for place in places):
            continue
        if "/" in found[1] or not any(PACKAGE.rglob(found[1])):
            yield found[1]
    for found in LINK.finditer(text):
        if not (page.parent / found[1]).exists():
            yield found[1]


def test_every_named_file_is_there() -> None:
    gone = {
        str(page.relative_to(ROOT)): sorted(set(missing(page, page.read_text(encoding="utf-8")))) for page in pages()
    }
    assert {page: names for page, names in gone.items() if names} == {}


def test_the_check_sees_a_file_that_is_gone() -> None:
    text = "`messenger/worker.py`, `messenger/gone.py`, [here](CONTRIBUTING.md), [there](gone.md)"
    assert list(missing(ROOT / "README.md", text)) == ["messenger/gone.py", "gone.md"]
