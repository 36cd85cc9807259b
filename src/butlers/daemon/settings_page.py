"""docs/operating/configuration.md, made from the models that are enforced: `python -m butlers.daemon.settings_page`.

A test compares the page with what this module makes, so a setting cannot be added, renamed or given another default
without its line on the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from butlers.daemon.settings import PORT_PREFIX, Settings, shipped_roster, variable_of
from butlers.roster import ButlerConfig, load_roster
from butlers.simulators import simulator_ports

PAGE = Path("docs/operating/configuration.md")
FLAGS = {"data_dir": "`--data-dir`", "port_offset": "`--port-offset`", "ports": "`--port NAME=NUMBER`"}
NOT_IN_FILE = frozenset({"instructions", "skills", "source"})  # read from the folder, not from butler.toml
DEFAULT_DATA_DIR = "`$XDG_DATA_HOME/butlers`, else `~/.local/share/butlers`"

_INTRODUCTION = """\
# Configuration

This page is made by `python -m butlers.daemon.settings_page` from the code that reads the settings.

There are two kinds of files. Settings say how this installation runs: where its data is, which ports it uses, which
database. The roster says what each butler is: one folder with a `butler.toml` per butler.

A mistake stops the start with one message that names the source, the key and the remedy. `butlers doctor` looks for
mistakes without starting anything.

## Settings

A setting comes from the first of these that has it:

1. the command line: a flag of its own, or `--set KEY=VALUE` (may be repeated)
2. the environment
3. the settings file: `butlers.toml` in the data directory, or the file that `--config` or `BUTLERS_CONFIG` names
4. the default

An unknown key in the file or after `--set` is a mistake. An empty environment variable counts as not set.
"""

_PORTS = """\
## Ports

`--port-offset` is added to all of them. `--port NAME=NUMBER`, `{prefix}NAME` or `[ports]` in the settings file set
one of them and take no offset.
"""

_ROSTER = """\
## butler.toml

One folder per butler in the roster (`roster` above); beside `butler.toml` it may hold `AGENTS.md`, what the LLM is
told, and a folder `skills`. Names, ports and schemas must be distinct. A module is loaded when its table stands in the
file.

Secrets never stand in the file. A key that ends in `_env` names the environment variable that holds the secret; the
variables of every enabled scope must have a value, those of a disabled scope are not looked at. When none of a
provider's variables is set and `simulators` is `auto`, the provider is simulated.
"""
_COLUMNS = ("key", "type", "default", "meaning")


def page() -> str:
    """The whole page."""
    settings = _table(("key", "on the command line", "environment", "default", "meaning"), _settings())
    ports = _table(("name", "port"), _ports())
    sections = (f"### `{header}`\n\n{_table(_COLUMNS, rows)}" for header, rows in _sections(ButlerConfig))
    return "\n".join([_INTRODUCTION, settings, _PORTS.format(prefix=PORT_PREFIX), ports, _ROSTER, *sections])


def _settings() -> Iterator[tuple[str, ...]]:
    for key, field in Settings.model_fields.items():
        flag = FLAGS.get(key, f"`--set {key}=`")
        variable = f"{PORT_PREFIX}NAME" if key == "ports" else variable_of(key)
        default = DEFAULT_DATA_DIR if key == "data_dir" else _default(field)
        yield f"`{key}`", flag, f"`{variable}`", default, field.description or ""


def _ports() -> Iterator[tuple[str, ...]]:
    butlers = {name: config.butler.port for name, config in load_roster(shipped_roster()).items()}
    for name, port in sorted((butlers | dict(simulator_ports())).items(), key=lambda entry: entry[1]):
        yield f"`{name}`", str(port)


def _sections(
    model: type[BaseModel], path: str = "", *, repeated: bool = False
) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Every table of the file, outer before inner: its header and its keys."""
    inner: list[tuple[str, type[BaseModel], bool]] = []
    rows: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        section = _section_of(field.annotation)
        if section is not None:
            named = ".<channel>" if get_origin(field.annotation) is dict else ""
            below = f"{path}.{key}" if path else key
            inner.append((f"{below}{named}", section, get_origin(field.annotation) is list))
        elif path or key not in NOT_IN_FILE:
            rows.append((f"`{key}`", _type(field.annotation), _default(field), field.description or ""))
    # A table without keys of its own or below it is a switch: that it stands there is all it says.
    if path and (rows or not inner):
        yield (f"[[{path}]]" if repeated else f"[{path}]"), rows
        if model.model_config.get("extra") == "allow":  # further tables, of the same keys
            inherited = f"the channel's own, else `[{path}]`"
            yield f"[{path}.<channel>]", [(key, kind, inherited, meaning) for key, kind, _, meaning in rows]
    for below, section, many in inner:
        yield from _sections(section, below, repeated=many)


def _section_of(annotation: Any) -> type[BaseModel] | None:
    candidates = (annotation, *get_args(annotation))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _type(next(a for a in arguments if a is not NoneType))
    if origin is Literal:
        return " or ".join(f"`{argument}`" for argument in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "table"
    return {str: "text", bool: "true or false", int: "whole number", float: "number"}[annotation]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "none" if value is None else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        pairs = ", ".join(f"{key} = {_toml(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return json.dumps(value, ensure_ascii=False)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [_row(columns), _row(("---",) * len(columns)), *map(_row, rows)]
    return "\n".join(lines) + "\n" if len(lines) > 2 else "No keys; the table's presence loads the module.\n"


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m butlers.daemon.settings_page", description="Write the page.")
    parser.add_argument("file", nargs="?", type=Path, default=PAGE, help=f"where to; default: {PAGE}")
    target: Path = parser.parse_args().file
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
