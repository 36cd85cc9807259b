"""The memory of one butler, wired: its tools, its jobs, and sessions that leave episodes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from butlers.butler.config import ButlerConfig
from butlers.butler.memory import LocalReader, Memory, MemoryPolicy, MemoryTools, ModelReader, migrations
from butlers.butler.schedules import Job
from butlers.butler.toolbox import Tool
from butlers.storage.migrations import MigrationSet

if TYPE_CHECKING:
    from butlers.daemon.compose.base import Butler


def memory_migrations(config: ButlerConfig) -> list[MigrationSet]:
    """The tables, where the module is on."""
    return [migrations(config.schema_name)] if config.modules.memory is not None else []


def memory_of(butler: Butler) -> Memory | None:
    """The memory of a butler that has the module."""
    process, module = butler.process, butler.config.modules.memory
    if module is None:
        return None
    return Memory.of(
        database=process.database,
        schema=butler.config.schema_name,
        clock=process.clock,
        new_id=process.new_id,
        policy=MemoryPolicy(episode_ttl=timedelta(days=module.episode_ttl_days), important_from=module.important_from),
        worker=process.instance,
    )


def add_memory(butler: Butler) -> tuple[list[Tool], dict[str, Job]]:
    """The module's tools and jobs, if the butler has one; from now on its sessions are remembered."""
    memory = memory_of(butler)
    if memory is None:
        return [], {}
    butler.spawner.observe(memory.recorder().record)
    reader = LocalReader() if butler.spawner.runtime_name == "local" else ModelReader(butler.spawner)
    return MemoryTools(butler=butler.name, memory=memory).tools(), memory.jobs(reader)
