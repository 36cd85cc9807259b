"""What a butler remembers.

    sessions, memory_store_episode          memory_store_fact, memory_store_rule
                │                                        │
                v                                        v
            episodes ──── memory_consolidation ───> facts, rules ────> memory_recall
                │            (rules, or a model)
                └── memory_episode_cleanup: gone after their TTL

An episode is what happened and is forgotten after a week. A fact is what is so: it fades with time, at a rate that
depends on how lasting it is, until somebody confirms it; a newer one takes its place. A rule is how to act, and ripens
by use.
"""

from __future__ import annotations

from butlers.butler.memory.consolidation import LocalReader, ModelReader
from butlers.butler.memory.memory import PACKAGE, Memory
from butlers.butler.memory.tools import MemoryTools
from butlers.butler.memory.values import MemoryPolicy
from butlers.storage.migrations import MigrationSet

__all__ = ["LocalReader", "Memory", "MemoryPolicy", "MemoryTools", "ModelReader", "migrations"]


def migrations(schema: str) -> MigrationSet:
    return MigrationSet(schema=schema, package=PACKAGE, component="memory")
