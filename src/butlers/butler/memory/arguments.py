"""What the memory tools take."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints

from butlers.butler.memory.values import MAX_CONTENT, MAX_NAME, Kind, Maturity, Permanence
from butlers.butler.sessions import OWNER
from butlers.contracts.envelope import Value

MAX_PAGE = 50
MAX_OFFSET = 600  # three kinds of candidates


def _says_something(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


Content = Annotated[str, StringConstraints(max_length=MAX_CONTENT), AfterValidator(_says_something)]
Name = Annotated[str, StringConstraints(max_length=MAX_NAME), AfterValidator(_says_something)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class StoreEpisodeArguments(Value):
    content: Content
    answer: Content | None = None
    speaker: Name = OWNER  # who is meant by "I" and "my"
    importance: Share = 0.5


class StoreFactArguments(Value):
    subject: Name
    predicate: Name
    content: Content
    permanence: Permanence = "standard"
    confidence: Share = 0.9


class StoreRuleArguments(Value):
    content: Content
    maturity: Maturity = "candidate"


class RecallArguments(Value):
    query: Content
    kinds: list[Kind] = Field(default=["fact", "rule", "episode"], min_length=1, max_length=3)
    limit: int = Field(default=10, ge=1, le=MAX_PAGE)
    offset: int = Field(default=0, ge=0, le=MAX_OFFSET)
    min_confidence: Share = 0.05  # what has faded below is not shown


class MemoryArguments(Value):
    kind: Kind
    id: UUID


class ConfirmArguments(Value):
    kind: Literal["fact", "rule"]
    id: UUID
    outcome: Literal["helpful", "harmful"] = "helpful"  # of a rule that was followed
