"""Options and arguments that actions and rules share."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

ActionId = Annotated[str, typer.Argument(help="An action's id, as `approvals list` prints it.")]
Butler = Annotated[str, typer.Option(help="Whose actions.")]
OptionalReason = Annotated[str | None, typer.Option("--reason", help="Why; it is kept.")]


def of_butler(name: str) -> str:
    """The query that names the butler whose actions are meant."""
    return f"?butler={quote(name, safe='')}"
