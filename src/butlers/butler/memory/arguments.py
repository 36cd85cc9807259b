"""What the memory tools take and answer."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints

from butlers.butler.memory.values import MAX_CONTENT, MAX_NAME, Kind, Maturity, Permanence
from butlers.butler.sessions import OWNER
from butlers.contracts.envelope import Value
from butlers.operations.operation import Result, Row

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
    content: Content = Field(description="what happened or was said")
    answer: Content | None = Field(default=None, description="what was answered")
    speaker: Name = Field(default=OWNER, description='who is meant by "I" and "my"')
    importance: Share = Field(default=0.5, description="0 to 1: what is important is kept longer")


class StoreFactArguments(Value):
    subject: Name = Field(description="who or what it is about")
    predicate: Name = Field(description="what is said about it, such as birthday")
    content: Content = Field(description="what is so")
    permanence: Permanence = Field(default="standard", description="how fast it fades")
    confidence: Share = Field(default=0.9, description="0 to 1: how sure it is")


class StoreRuleArguments(Value):
    content: Content = Field(description="how to act")
    maturity: Maturity = Field(default="candidate", description="how well tried the rule is")


class RecallArguments(Value):
    query: Content = Field(description="words to look for")
    kinds: list[Kind] = Field(
        default=["fact", "rule", "episode"], min_length=1, max_length=3, description="which kinds of memories"
    )
    limit: int = Field(default=10, ge=1, le=MAX_PAGE, description="at most so many, on one page")
    offset: int = Field(default=0, ge=0, le=MAX_OFFSET, description="leave out so many of the best")
    min_confidence: Share = Field(default=0.05, description="0 to 1: what has faded below is not shown")


class MemoryArguments(Value):
    kind: Kind = Field(description="the kind of memory")
    id: UUID = Field(description="the memory, by its id")


class ConfirmArguments(Value):
    kind: Literal["fact", "rule"] = Field(description="fact, or rule")
    id: UUID = Field(description="the memory, by its id")
    outcome: Literal["helpful", "harmful"] = Field(
        default="helpful", description="of a rule that was followed; a fact can only be helpful"
    )


class MemoryStored(Result):
    kind: str = Field(description="the kind of memory")
    id: str = Field(description="the memory, by its id")
    status: str = Field(description="stored, or what became of an earlier one")


class Memories(Result):
    memories: list[Row] = Field(description="the memories, best first, with kind, content, score and confidence")
    next_offset: int | None = Field(description="the offset of the next page; null: this is the last one")


class MemoryResult(Result):
    kind: str = Field(description="the kind of memory")
    memory: Row = Field(description="the memory, whole")


class MemoryForgotten(Result):
    kind: str = Field(description="the kind of memory")
    id: str = Field(description="the memory, by its id")
    forgotten: bool | int = Field(description="that it is gone")


class MemoryConfirmed(Result):
    kind: str = Field(description="fact, or rule")
    id: str = Field(description="the memory, by its id")
    maturity: str | None = Field(default=None, description="of a rule: how well tried it is now")
    memory: Row | None = Field(default=None, description="of a fact: the fact, whole")


class MemoryStats(Result):
    episodes: Row = Field(description="how many, by state, and the oldest that nobody has read")
    facts: Row = Field(description="how many, by state")
    rules: Row = Field(description="how many, by maturity")
