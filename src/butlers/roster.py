"""The roster: one folder with a butler.toml per butler, checked to the last key before anything starts.

An unknown key, an inline secret, a wrong environment-variable name or a missing value of an enabled credential scope
stops the start with one message that names the file, the key and the remedy.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import GetCoreSchemaHandler, GetPydanticSchema
from pydantic_core import CoreSchema

from butlers.butler.config import ButlerSection, Section
from butlers.butler.modules import Modules, installed_modules
from butlers.errors import ConfigurationError
from butlers.messenger.config import DeliverySection
from butlers.switchboard.config import AdmissionSection, BufferSection, LifecycleSection, RoutingSection

_SECRET_WORDS = re.compile(r"(^|_)(token|password|passwd|secret|api_?key|credential)s?$", re.IGNORECASE)


def _of_installed(_source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    return handler.generate_schema(installed_modules())


class ButlerConfig(Section):
    """One roster folder, read and checked."""

    butler: ButlerSection
    buffer: BufferSection = BufferSection()
    admission: AdmissionSection = AdmissionSection()
    routing: RoutingSection = RoutingSection()
    lifecycle: LifecycleSection = LifecycleSection()
    delivery: DeliverySection = DeliverySection()
    modules: Annotated[Modules, GetPydanticSchema(_of_installed)] = installed_modules()()
    instructions: str = ""  # AGENTS.md: what the LLM is told
    skills: tuple[str, ...] = ()  # names of the folders below skills/
    source: str = "butler.toml"

    @property
    def name(self) -> str:
        return self.butler.name

    @property
    def schema_name(self) -> str:
        return self.butler.db.schema_name


def load_butler(folder: Path) -> ButlerConfig:
    """Read one roster folder."""
    path = folder / "butler.toml"
    document = _read_toml(path)
    for key in _inline_secrets(document):
        raise ConfigurationError(
            "secrets must not stand in butler.toml",
            source=str(path),
            key=key,
            remedy=f"put the value into an environment variable and name it in {key}_env",
        )
    if reserved := {"instructions", "skills", "source"} & document.keys():
        raise _unknown_key(path, min(reserved))
    agents = folder / "AGENTS.md"
    extras = {
        "instructions": agents.read_text(encoding="utf-8") if agents.is_file() else "",
        "skills": tuple(sorted(p.name for p in (folder / "skills").glob("*/") if p.is_dir())),
        "source": str(path),
    }
    try:
        return ButlerConfig.model_validate(document | extras)
    except pydantic.ValidationError as error:
        raise _configuration_error(path, error) from None


def load_roster(folder: Path) -> dict[str, ButlerConfig]:
    """All butlers of a roster by name; names, ports and schemas must be distinct."""
    configs = [load_butler(path.parent) for path in sorted(folder.glob("*/butler.toml"))]
    if not configs:
        raise ConfigurationError(
            "no butler.toml found",
            source=str(folder),
            key="roster",
            remedy="name a folder of butlers with --set roster=FOLDER",
        )
    _check_distinct(configs, "name", lambda c: c.name)
    _check_distinct(configs, "port", lambda c: c.butler.port)
    _check_distinct(configs, "db.schema", lambda c: c.schema_name)
    return {config.name: config for config in configs}


def check_credentials(config: ButlerConfig, environment: Mapping[str, str], *, elsewhere: Collection[str] = ()) -> None:
    """Every variable that an enabled credential scope names must have a value, except those looked up `elsewhere`."""
    for key, variable in config.modules.required_variables():
        if key not in elsewhere and not environment.get(variable):
            raise ConfigurationError(
                f"environment variable {variable} is not set",
                source=config.source,
                key=key,
                remedy=f"export {variable}=..., or {_without(key)}",
            )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            "file not found", source=str(path), key="butler", remedy="every roster folder needs a butler.toml"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"not valid TOML: {error}", source=str(path), key="(file)", remedy="mend the syntax"
        ) from None


def _inline_secrets(node: Any, path: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            here = f"{path}.{key}" if path else key
            # A table of names of variables, such as options_env, holds no values.
            if isinstance(value, str) and _SECRET_WORDS.search(key) and not path.endswith("_env"):
                yield here
            yield from _inline_secrets(value, here)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _inline_secrets(value, f"{path}.{index}")


def _configuration_error(path: Path, error: pydantic.ValidationError) -> ConfigurationError:
    first = error.errors(include_url=False, include_input=False)[0]
    key = ".".join(map(str, first["loc"])) or "(file)"
    if first["type"] == "extra_forbidden":
        return _unknown_key(path, key)
    problem = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
    return ConfigurationError(problem, source=str(path), key=key, remedy="see docs/operating/configuration.md")


def _unknown_key(path: Path, key: str) -> ConfigurationError:
    return ConfigurationError(
        "unknown key",
        source=str(path),
        key=key,
        remedy="remove it or mend its spelling; see docs/operating/configuration.md",
    )


def _check_distinct(configs: list[ButlerConfig], key: str, value_of: Any) -> None:
    seen: dict[Any, ButlerConfig] = {}
    for config in configs:
        other = seen.setdefault(value_of(config), config)
        if other is not config:
            raise ConfigurationError(
                f"{value_of(config)!r} is already used by {other.source}",
                source=config.source,
                key=f"butler.{key}",
                remedy="give each butler its own",
            )


def _without(key: str) -> str:
    """How to do without the credential at this key: scopes are switched off, channels by adapter are taken out."""
    module, adapter, _ = key.partition(".options_env.")
    return f"remove [{module}]" if adapter else "set enabled = false for this scope"
