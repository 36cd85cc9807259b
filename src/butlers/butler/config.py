"""What the butler.toml of every butler says: its `[butler]` table.

A system declares the sections of its own (`messenger/config.py`, `switchboard/config.py`); `butlers/roster.py` reads
the files and checks them all.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Literal

from croniter import CroniterError, croniter
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

RuntimeKind = Literal["local", "codex", "claude", "opencode"]
_ANY_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class Section(BaseModel):
    """A table of a butler.toml: no unknown key, no coercion, no infinity."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False, defer_build=True
    )


class DatabaseSection(Section):
    name: str = Field(default="butlers", description="the database, shared by all butlers")
    schema_name: str = Field(alias="schema", description="the butler's own schema in it")

    @field_validator("name", "schema_name")
    @classmethod
    def _is_identifier(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("must be a lower-case identifier")
        return value


class RuntimeSection(Section):
    type: RuntimeKind = Field(default="local", description="which program thinks for the butler when llm is on")
    model: str | None = Field(default=None, description="the model to ask for; default: the program's own")
    command: str | None = Field(default=None, description="the executable, when it is not on PATH under its own name")
    max_concurrent_sessions: int = Field(default=3, ge=1, le=64, description="sessions of the program at one time")
    timeout_s: float = Field(default=120.0, gt=0, description="seconds one session may take")


class SecuritySection(Section):
    trusted_route_callers: list[str] = Field(
        default=["switchboard"], description="principals that may call route.execute; an empty list refuses everybody"
    )


class ShutdownSection(Section):
    timeout_s: float = Field(default=30.0, gt=0, description="seconds to finish what is in hand when stopping")


class RegistrySection(Section):
    """What Switchboard tells its router about this butler."""

    triggers: list[str] = Field(default=[], description="words and phrases that say a message is for this butler")
    required_information: list[str] = Field(default=[], description="what the butler needs to know to act")
    route_timeout_s: float = Field(default=60.0, gt=0, description="seconds one route.execute may take")


class ScheduleSection(Section):
    name: str = Field(min_length=1, description="unique within the butler")
    cron: str = Field(description="cron expression of five fields, in UTC")
    dispatch_mode: Literal["job", "prompt"] = Field(default="prompt", description="job: native code; prompt: the LLM")
    job_name: str | None = Field(default=None, description="the native job; required by dispatch_mode job")
    job_args: dict[str, Any] = Field(default={}, description="handed to the job")
    prompt: str | None = Field(default=None, description="what the LLM is told; required by dispatch_mode prompt")
    enabled: bool = Field(default=True, description="false: kept, but not run")

    @field_validator("cron")
    @classmethod
    def _is_cron(cls, value: str) -> str:
        if (problem := cron_problem(value)) is not None:
            raise ValueError(problem)
        return value

    @model_validator(mode="after")
    def _check_what_to_run(self) -> ScheduleSection:
        needed, given = ("job_name", self.job_name) if self.dispatch_mode == "job" else ("prompt", self.prompt)
        if not given:
            raise ValueError(f"dispatch_mode {self.dispatch_mode} needs {needed}")
        return self


class ButlerSection(Section):
    name: str = Field(description="lower-case identifier, unique in the roster")
    port: int = Field(ge=1, le=65535, description="where its doors are, unique in the roster")
    description: str = Field(min_length=1, description="what it is for, in one line")
    db: DatabaseSection
    runtime: RuntimeSection = RuntimeSection()
    security: SecuritySection = SecuritySection()
    shutdown: ShutdownSection = ShutdownSection()
    registry: RegistrySection = RegistrySection()
    schedule: list[ScheduleSection] = Field(default=[])

    @field_validator("name")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("must be a lower-case identifier")
        return value

    @field_validator("schedule")
    @classmethod
    def _names_are_unique(cls, value: list[ScheduleSection]) -> list[ScheduleSection]:
        names = [entry.name for entry in value]
        if len(names) != len(set(names)):
            raise ValueError("schedule names must be unique")
        return value


def cron_problem(cron: str) -> str | None:
    """What is wrong with a cron expression of five fields, in UTC; None: it names moments that really come."""
    if len(cron.split()) != 5 or not croniter.is_valid(cron):
        return "must be a cron expression of five fields"
    try:
        next_run(cron, _ANY_MOMENT)
    except CroniterError:
        return "names a moment that never comes"
    return None


def next_run(cron: str, after: datetime) -> datetime:
    """The first moment after `after` that a cron expression names."""
    following: datetime = croniter(cron, after).get_next(datetime)
    return following
