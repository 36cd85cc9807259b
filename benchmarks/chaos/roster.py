"""A copy of the shipped roster in which Messenger's limits do not get in the way of what is measured.

Only what the configuration knows is changed, so that the copy is valid for every version of it.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from butlers.daemon.settings import shipped_roster
from butlers.roster import ButlerConfig


def lifted_roster(
    folder: Path,
    delivery: Mapping[str, Any],
    *,
    modules: Mapping[str, Any] | None = None,
    route_timeout_s: float | None = None,
) -> Path:
    """The roster with these values in Messenger's [delivery], as far as there are such keys, and in its modules."""
    shutil.copytree(shipped_roster(), folder)
    path = folder / "messenger" / "butler.toml"
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    section = document.setdefault("delivery", {})
    known = type(ButlerConfig.model_fields["delivery"].default).model_fields
    for key, value in delivery.items():
        if key in known:
            _merge(section, key, value)
    for name, module in (modules or {}).items():
        _merge(document["modules"], name, module)
    if route_timeout_s is not None:
        document["butler"].setdefault("registry", {})["route_timeout_s"] = route_timeout_s
    path.write_text("\n".join(_toml(document)) + "\n", encoding="utf-8")
    return folder


def amend(folder: Path, butler: str, values: Mapping[str, Any]) -> None:
    """Change these tables of one butler's configuration in a copied roster."""
    path = folder / butler / "butler.toml"
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    for key, value in values.items():
        _merge(document, key, value)
    path.write_text("\n".join(_toml(document)) + "\n", encoding="utf-8")


def _merge(section: dict[str, Any], key: str, value: Any) -> None:
    """A table is changed entry by entry: what is not mentioned stays."""
    present = section.get(key)
    if not isinstance(present, dict) or not isinstance(value, Mapping):
        section[key] = value
        return
    for inner, wanted in value.items():
        _merge(present, inner, wanted)


def _toml(table: Mapping[str, Any], *path: str) -> Iterator[str]:
    """The lines of a TOML document; its keys, strings, numbers and lists are written as JSON writes them."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping) and not _is_tables(value)}
    if path and (plain or not table):
        yield f"[{_dotted(path)}]"
    yield from _lines(plain)
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _toml(value, *path, key)
        elif _is_tables(value):
            for entry in value:  # flat ones, as schedules and rules are
                yield f"[[{_dotted((*path, key))}]]"
                yield from _lines(entry)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, Mapping) for entry in value)


def _lines(plain: Mapping[str, Any]) -> Iterator[str]:
    for key, value in plain.items():
        yield f"{json.dumps(key)} = {json.dumps(value)}"


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(map(json.dumps, path))
