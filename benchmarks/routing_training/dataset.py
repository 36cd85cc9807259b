"""The labelled messages and the lexicon under tests/data/routing, as the training and the benchmark read them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from butlers.switchboard.routing.features import Token, fold, tokens
from butlers.switchboard.routing.model import BEGINNING, CLASSES, STEM, WIDTH, Levels, Lexicon, stem_of_term, term_hash

DATA = Path(__file__).parents[2] / "tests" / "data" / "routing"
HELD_OUT = DATA / "held_out.jsonl"
HELD_OUT_HARD = DATA / "held_out_hard.jsonl"  # written to mislead: misleading words, hints instead of names
INJECTIONS = DATA / "injections.jsonl"
TAUGHT = DATA / "taught.tsv"
GENERAL = "general"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    text: str
    channel: str
    targets: frozenset[str]
    kind: str
    lang: str
    parts: tuple[tuple[str, str], ...] = ()  # butler, text
    source: str = ""

    @property
    def is_example(self) -> bool:
        """Whether its words speak for one butler; those of an order to the router do not."""
        return len(self.targets) == 1 and self.kind != "hostile"


def specialists(targets: list[str]) -> frozenset[str]:
    """`general` never stands beside a specialist: what is left over goes with its neighbour."""
    return frozenset(targets) - {GENERAL} or frozenset({GENERAL})


def read(path: Path) -> Iterator[Message]:
    for line in path.read_text(encoding="utf-8").splitlines():
        row: dict[str, Any] = json.loads(line)
        yield Message(
            text=row["text"],
            channel=row["channel"],
            targets=specialists(row["targets"]),
            kind=row["kind"],
            lang=row["lang"],
            parts=tuple((part["butler"], part["text"]) for part in row.get("parts", ())),
            source=path.stem,
        )


def tuning() -> list[Message]:
    return [message for path in _tuning_files() for message in read(path)]


def said(text: str) -> list[Token]:
    return tokens(fold(text).text)


def lexicon() -> Lexicon:
    terms: dict[int, Levels] = {}
    stems: dict[int, Levels] = {}
    names: set[int] = set()
    for index, lang, level, term in _rows():
        words = [token.text for token in said(term)]
        if not words:
            continue
        if lang == "name":
            names.add(term_hash(words[0]))
            continue
        _raise(terms, " ".join(words), index, level)
        for size in range(1, len(words)):
            terms.setdefault(term_hash(" ".join(words[:size])), BEGINNING)
        if len(words) == 1 and len(words[0]) > STEM:
            _raise(stems, stem_of_term(words[0]), index, level)
    return Lexicon(terms=terms, stems=stems, names=frozenset(names), taught=_taught())


def fingerprint() -> str:
    """Of everything that is trained on; the model carries it."""
    digest = hashlib.sha256()
    for path in [*_tuning_files(), *_lexicon_files(), TAUGHT]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _rows() -> Iterator[tuple[int, str, int, str]]:
    for path in _lexicon_files():
        index = CLASSES.index(path.stem)
        for line in path.read_text(encoding="utf-8").splitlines():
            lang, level, term = line.split("\t")
            yield index, lang, int(level), term


def _taught() -> dict[int, bytes]:
    rows = (line.split("\t") for line in TAUGHT.read_text(encoding="utf-8").splitlines())
    return {term_hash(term): bytes(map(int, scores.split())) for term, scores in rows}


def _raise(terms: dict[int, Levels], term: str, index: int, level: int) -> None:
    key = term_hash(term)
    levels = list(terms.get(key, (0,) * WIDTH))
    levels[index] = max(levels[index], level)
    terms[key] = tuple(levels)


def _tuning_files() -> list[Path]:
    return sorted(DATA.glob("tuning_*.jsonl"))


def _lexicon_files() -> list[Path]:
    return sorted((DATA / "lexicon").glob("*.tsv"))
