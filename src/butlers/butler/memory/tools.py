"""The memory's tools, for the butler's own sessions and the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.memory import Memory
from butlers.butler.memory.episodes import NewEpisode
from butlers.butler.memory.extraction import MAX_CONTENT, MAX_NAME, Permanence
from butlers.butler.memory.facts import NewFact
from butlers.butler.memory.recall import Kind, Maturity, Question
from butlers.butler.sessions import OWNER
from butlers.butler.toolbox import Tool, tool, tools_of
from butlers.contracts.envelope import Value, invalid
from butlers.errors import NotFound, ValidationError
from butlers.operations.operation import ACTS, ADDS, CHANGES, READS, NoArguments, Result, Row

MAX_PAGE = 50
MAX_OFFSET = 600  # three kinds of candidates


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


Content = Annotated[str, StringConstraints(max_length=MAX_CONTENT), AfterValidator(_not_empty)]
Name = Annotated[str, StringConstraints(max_length=MAX_NAME), AfterValidator(_not_empty)]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTools:
    butler: str
    memory: Memory

    def tools(self) -> list[Tool]:
        return tools_of(self, owner=self.butler)

    @tool("memory_store_episode", "Remember what happened.", MemoryStored, ADDS)
    async def _store_episode(self, caller: Caller, arguments: StoreEpisodeArguments) -> dict[str, Any]:
        episode = NewEpisode(source=f"tool:{caller.name}", **arguments.model_dump())
        stored = await self.memory.episodes.store(episode, now=self.memory.clock.now())
        return wire({"kind": "episode", "id": stored, "status": "stored"})

    @tool("memory_store_fact", "Remember what is so.", MemoryStored, ACTS)
    async def _store_fact(self, _caller: Caller, arguments: StoreFactArguments) -> dict[str, Any]:
        now = self.memory.clock.now()
        fact = NewFact(origin="tool", observed_at=now, **arguments.model_dump())
        async with self.memory.database.transaction() as connection:
            fact_id, status = await self.memory.facts.store(connection, fact, now=now)
        return wire({"kind": "fact", "id": fact_id, "status": status})

    @tool("memory_store_rule", "Remember how to act.", MemoryStored, ADDS)
    async def _store_rule(self, _caller: Caller, arguments: StoreRuleArguments) -> dict[str, Any]:
        now = self.memory.clock.now()
        async with self.memory.database.transaction() as connection:
            rule_id, maturity = await self.memory.rules.store(
                connection, arguments.content, origin="tool", now=now, maturity=arguments.maturity
            )
        return wire({"kind": "rule", "id": rule_id, "maturity": maturity, "status": "stored"})

    @tool("memory_recall", "Find memories by words, best first.", Memories, READS)
    async def _recall(self, _caller: Caller, arguments: RecallArguments) -> dict[str, Any]:
        question = Question(
            text=arguments.query,
            kinds=set(arguments.kinds),
            limit=arguments.limit,
            offset=arguments.offset,
            min_confidence=arguments.min_confidence,
        )
        page = await self.memory.recall.search(question, now=self.memory.clock.now())
        if page is None:
            raise invalid("query", "has no word that could be looked for")
        return wire(page)

    @tool("memory_get", "One memory, whole.", MemoryResult, READS)
    async def _get(self, _caller: Caller, arguments: MemoryArguments) -> dict[str, Any]:
        found = await self._found(arguments.kind, arguments.id)
        if found is None:
            raise _unknown(arguments.kind)
        return wire({"kind": arguments.kind, "memory": found})

    async def _found(self, kind: Kind, memory_id: UUID) -> dict[str, Any] | None:
        if kind == "fact":
            return await self.memory.facts.get(memory_id, now=self.memory.clock.now())
        return await (self.memory.rules if kind == "rule" else self.memory.episodes).get(memory_id)

    @tool("memory_forget", "Forget one memory for good.", MemoryForgotten, CHANGES)
    async def _forget(self, _caller: Caller, arguments: MemoryArguments) -> dict[str, Any]:
        forgetting = {
            "fact": self.memory.facts.forget,
            "rule": self.memory.rules.forget,
            "episode": self.memory.episodes.forget,
        }
        forgotten = await forgetting[arguments.kind](arguments.id)
        if not forgotten:
            raise _unknown(arguments.kind)
        return wire({"kind": arguments.kind, "id": arguments.id, "forgotten": forgotten})

    @tool("memory_confirm", "Say that a fact still holds, or how a rule did.", MemoryConfirmed, ACTS)
    async def _confirm(self, _caller: Caller, arguments: ConfirmArguments) -> dict[str, Any]:
        now = self.memory.clock.now()
        if arguments.kind == "rule":
            maturity = await self.memory.rules.used(arguments.id, helped=arguments.outcome == "helpful", now=now)
            if maturity is None:
                raise _unknown("rule")
            return wire({"kind": "rule", "id": arguments.id, "maturity": maturity})
        if arguments.outcome == "harmful":
            raise invalid("outcome", "a fact holds or is forgotten; only a rule can do harm")
        if not await self.memory.facts.confirm(arguments.id, now=now):
            raise _unknown("fact", "that still holds")
        fact = await self.memory.facts.get(arguments.id, now=now)
        return wire({"kind": "fact", "id": arguments.id, "memory": fact})

    @tool("memory_stats", "How much is remembered.", MemoryStats, READS)
    async def _stats(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return wire(await self.memory.stats())


def _unknown(kind: Kind, which: str = "") -> ValidationError:
    return NotFound.of("id", f"no such {kind} {which}".strip())
