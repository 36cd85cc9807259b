"""The runtimes that run an LLM command line: codex, claude, opencode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from butlers.butler.runtimes.cli import CliRuntime
from butlers.butler.runtimes.dialects import CLAUDE, CODEX, OPENCODE, Dialect
from butlers.clock import Clock, SystemClock
from butlers.errors import ConfigurationError

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (CODEX, CLAUDE, OPENCODE)}

__all__ = ["DIALECTS", "build_runtime"]


def build_runtime(
    kind: str,
    model: str | None,
    command: str | None,
    *,
    clock: Clock | None = None,
    environ: Mapping[str, str],
    hidden: tuple[Path, ...] = (),
) -> CliRuntime:
    """The runtime that butler.toml asks for. `command`: the executable's path or name when it is not in PATH; `hidden`:
    folders that its program must not see.
    """
    if kind not in DIALECTS:
        raise _wrong(f"unknown runtime {kind!r}", "type", f"use one of: {', '.join(DIALECTS)}")
    # It would be read as a flag of the program.
    if model is not None and (not model or model.startswith("-")):
        raise _wrong(f"{model!r} is not a model name", "model", "name a model or leave the key out")
    return CliRuntime(
        dialect=DIALECTS[kind],
        model=model,
        command=command,
        clock=clock or SystemClock(),
        environ=environ,
        hidden=hidden,
    )


def _wrong(problem: str, key: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, source="butler.toml", key=f"butler.runtime.{key}", remedy=remedy)
