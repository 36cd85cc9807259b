"""The memory's tools, for the butler's own sessions and the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.memory.arguments import (
    ConfirmArguments,
    Memories,
    MemoryArguments,
    MemoryConfirmed,
    MemoryForgotten,
    MemoryResult,
    MemoryStats,
    MemoryStored,
    RecallArguments,
    StoreEpisodeArguments,
    StoreFactArguments,
    StoreRuleArguments,
)
from butlers.butler.memory.memory import Memory
from butlers.butler.memory.recall import Question
from butlers.butler.memory.values import Kind, NewEpisode, NewFact
from butlers.butler.surface import Tool, ToolLine, tools_of
from butlers.contracts.envelope import invalid
from butlers.errors import NotFound, ValidationError
from butlers.operations.operation import ACTS, ADDS, CHANGES, READS, NoArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTools:
    butler: str
    memory: Memory

    def tools(self) -> list[Tool]:
        table: tuple[ToolLine, ...] = (
            (
                "memory_store_episode",
                "Remember what happened.",
                StoreEpisodeArguments,
                MemoryStored,
                ADDS,
                self._store_episode,
            ),
            ("memory_store_fact", "Remember what is so.", StoreFactArguments, MemoryStored, ACTS, self._store_fact),
            ("memory_store_rule", "Remember how to act.", StoreRuleArguments, MemoryStored, ADDS, self._store_rule),
            ("memory_recall", "Find memories by words, best first.", RecallArguments, Memories, READS, self._recall),
            ("memory_get", "One memory, whole.", MemoryArguments, MemoryResult, READS, self._get),
            ("memory_forget", "Forget one memory for good.", MemoryArguments, MemoryForgotten, CHANGES, self._forget),
            (
                "memory_confirm",
                "Say that a fact still holds, or how a rule did.",
                ConfirmArguments,
                MemoryConfirmed,
                ACTS,
                self._confirm,
            ),
            ("memory_stats", "How much is remembered.", NoArguments, MemoryStats, READS, self._stats),
        )
        return tools_of(table, owner=self.butler)

    async def _store_episode(self, caller: Caller, arguments: StoreEpisodeArguments) -> dict[str, Any]:
        episode = NewEpisode(source=f"tool:{caller.name}", **arguments.model_dump())
        stored = await self.memory.episodes.store(episode, now=self.memory.clock.now())
        return wire({"kind": "episode", "id": stored, "status": "stored"})

    async def _store_fact(self, _caller: Caller, arguments: StoreFactArguments) -> dict[str, Any]:
        now = self.memory.clock.now()
        fact = NewFact(origin="tool", observed_at=now, **arguments.model_dump())
        async with self.memory.database.transaction() as connection:
            fact_id, status = await self.memory.facts.store(connection, fact, now=now)
        return wire({"kind": "fact", "id": fact_id, "status": status})

    async def _store_rule(self, _caller: Caller, arguments: StoreRuleArguments) -> dict[str, Any]:
        now = self.memory.clock.now()
        async with self.memory.database.transaction() as connection:
            rule_id, maturity = await self.memory.rules.store(
                connection, arguments.content, origin="tool", now=now, maturity=arguments.maturity
            )
        return wire({"kind": "rule", "id": rule_id, "maturity": maturity, "status": "stored"})

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

    async def _get(self, _caller: Caller, arguments: MemoryArguments) -> dict[str, Any]:
        found = await self._found(arguments.kind, arguments.id)
        if found is None:
            raise _unknown(arguments.kind)
        return wire({"kind": arguments.kind, "memory": found})

    async def _found(self, kind: Kind, memory_id: UUID) -> dict[str, Any] | None:
        if kind == "fact":
            return await self.memory.facts.get(memory_id, now=self.memory.clock.now())
        return await (self.memory.rules if kind == "rule" else self.memory.episodes).get(memory_id)

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

    async def _stats(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return wire(await self.memory.stats())


def _unknown(kind: Kind, which: str = "") -> ValidationError:
    return NotFound.of("id", f"no such {kind} {which}".strip())
