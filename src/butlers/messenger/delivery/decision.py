"""What the rules said of a delivery."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Which rule said what, for whoever asks why."""

    at: datetime
    rule: str
    verdict: str
    detail: str = ""

    def to_row(self) -> dict[str, str]:
        return {"at": self.at.isoformat(), "rule": self.rule, "verdict": self.verdict, "detail": self.detail}
