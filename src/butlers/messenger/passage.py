"""How a delivery passes through the transaction that takes it on, for whoever wants to know what took how long."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Step = Literal["read", "judged", "written"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """When a delivery that is being taken on came to which step."""

    began: datetime
    at: dict[Step, datetime] = field(default_factory=dict)

    def before(self, step: Step) -> tuple[datetime, datetime]:
        """The time that led up to a step, from the step before it."""
        earlier = {"read": self.began, "judged": self.at.get("read"), "written": self.at.get("judged")}[step]
        began = earlier or self.began
        return began, self.at.get(step, began)
