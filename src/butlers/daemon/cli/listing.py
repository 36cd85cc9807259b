"""A group of commands that lists when none of them is named: `butlers connectors` is `butlers connectors list`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer


def lists_by_itself(app: typer.Typer, command: Callable[..., None]) -> None:
    """Let the group take the listing's options, and nothing that belongs to one of its other commands."""

    def listing(**given: Any) -> None:
        context: typer.Context = given["context"]
        if context.invoked_subcommand is None:
            command(**given)
        elif misplaced := _said(context):
            raise typer.BadParameter(f"{misplaced} belongs behind `{context.invoked_subcommand}`")

    listing.__doc__ = command.__doc__
    listing.__signature__ = inspect.signature(command)  # type: ignore[attr-defined]
    listing.__annotations__ = command.__annotations__
    app.callback(invoke_without_command=True)(listing)


def _said(context: typer.Context) -> str | None:
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            return parameter.opts[0]
    return None
