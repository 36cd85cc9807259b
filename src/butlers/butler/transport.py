"""How one butler calls a tool of another. Implementations are in `transports/`.

The caller's identity belongs to the transport (an in-process principal, a bearer token) and cannot be put in a payload.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Transport(Protocol):
    async def call(self, butler: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The tool's answer. Raises `ClassifiedError`: the callee's own refusal, or `TargetUnavailable`."""

    async def close(self) -> None:
        """Give connections back."""
