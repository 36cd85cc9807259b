"""A skill of the roster: what a model is told, as files beside butler.toml.

skills/<name>/SKILL.md              the rules, for people and models alike
skills/<name>/prompts/<version>.md  the task and the form of the answer; a new version is a new file
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from butlers.errors import ConfigurationError
from butlers.switchboard.registry import RegisteredButler
from butlers.switchboard.routing.llm.data import as_data

_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    name: str
    rules: str
    prompts: Mapping[str, str]  # by version

    @classmethod
    def load(cls, folder: Path, name: str, versions: Iterable[str], *, key: str) -> Skill:
        """Read the skill and these versions of its prompt; `key` is where butler.toml names them."""
        home = folder / "skills" / name
        prompts = {version: _read(_prompt(home, version, key), key) for version in sorted(set(versions))}
        rules = _FRONT_MATTER.sub("", _read(home / "SKILL.md", key)).strip()
        return cls(name=name, rules=rules, prompts=prompts)

    def system(self, version: str, *more: str) -> str:
        """The instructions: nothing else that a model reads is to be obeyed."""
        return "\n\n".join([self.rules, self.prompts[version].strip(), *more])


def registry_text(butlers: Sequence[RegisteredButler]) -> str:
    """Who is there now and what each says of itself; one line of JSON per butler."""
    lines = (
        as_data(
            {
                "name": butler.name,
                "description": butler.description,
                "triggers": butler.triggers,
                "required_information": butler.required_information,
                "capabilities": butler.capabilities,
            }
        )
        for butler in sorted(butlers, key=lambda butler: butler.name)
    )
    return "\n".join(["# Butlers", "", *lines])


def _prompt(home: Path, version: str, key: str) -> Path:
    if not _VERSION.fullmatch(version):
        raise _missing(home / "prompts", key, "use letters, digits, dots and dashes")
    return home / "prompts" / f"{version}.md"


def _read(path: Path, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise _missing(path, key, "write the file, or name a version that is there") from None


def _missing(path: Path, key: str, remedy: str) -> ConfigurationError:
    return ConfigurationError("there is no such prompt", source=str(path), key=key, remedy=remedy)
