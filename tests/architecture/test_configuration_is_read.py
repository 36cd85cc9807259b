"""A setting or a key of butler.toml that nobody reads is a lie to whoever sets it.

The configuration is watched while a whole system starts and carries a message. What is read at another moment, or not
at all, is listed here with the reason, so that a change must be noticed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

from butlers import roster
from butlers.butler import config, modules
from butlers.butler.config import Section
from butlers.daemon import settings as settings_module
from butlers.daemon.settings import Settings
from butlers.messenger import config as messenger_config
from butlers.storage.embedded import EmbeddedPostgres
from butlers.switchboard import config as switchboard_config
from tests.architecture.source import source_files
from tests.system import running_system

Key = tuple[str, str]  # class, field

READ_LATER = {
    ("Settings", "roster"): "decides which roster there is, before a system exists",
    ("Settings", "simulators"): "decides what is simulated, before a system exists",
    ("Settings", "log_level"): "is the process's, not the system's",
    ("Settings", "log_max_bytes"): "is the process's, and the embedded server's",
    ("Settings", "log_keep"): "is the process's, and the embedded server's",
    ("Settings", "spark_master"): "read when a job of the pipeline is due",
    ("Settings", "spark_memory"): "read when a job of the pipeline is due",
    ("Settings", "spark_limit_s"): "read when a job of the pipeline is due",
    ("BufferSection", "scanner_grace_s"): "read when the scanner looks for the first time, seconds after the start",
    ("LimitsSection", "reply_multiplier"): "read when something is answered",
    ("LimitsSection", "reaction_multiplier"): "read when something is reacted to",
    ("DeliverySection", "answer_brake"): "read when a mail is answered",
    ("AnswerBrakeSection", "burst"): "read when a mail is answered",
    ("AnswerBrakeSection", "every_s"): "read when a mail is answered",
    ("AnswerBrakeSection", "per_day"): "read when a mail is answered",
    ("BreakersSection", "failure_threshold"): "read when an attempt failed",
    ("BreakersSection", "recovery_timeout_s"): "read when an attempt failed",
    ("BreakersSection", "probe_limit"): "read when an attempt failed",
    ("BreakersSection", "success_threshold"): "read when an attempt failed",
    ("DeliverySection", "retention"): "read by a timer, an hour after the start",
    ("RetentionSection", "deliveries_days"): "read by a timer, an hour after the start",
    ("RetentionSection", "dead_letters_days"): "read by a timer, an hour after the start",
    ("RetentionSection", "actions_days"): "read by a timer, an hour after the start",
    ("DeliverySection", "dedupe_retention_days"): "read by a timer, half a minute after the start",
    ("Settings", "database_durable"): "matters to the embedded server only; tests bring their own",
}
_WHEN_ON = "read when it is switched on, which the shipped roster does not do"
NOT_READ_YET = {
    ("DatabaseSection", "name"): "there is one database and the system names it itself",
    ("TelegramUserScope", "token_env"): _WHEN_ON,
    ("EmailUserScope", "address_env"): _WHEN_ON,
    ("EmailUserScope", "password_env"): _WHEN_ON,
    ("ApprovalsModule", "gated_tools"): _WHEN_ON,
    ("ApprovalsModule", "expiry_hours"): _WHEN_ON,
    ("ChannelModule", "adapter"): _WHEN_ON,
    ("ChannelModule", "options"): _WHEN_ON,
    ("ChannelModule", "options_env"): _WHEN_ON,
    ("PackageChannelModule", "options"): _WHEN_ON,
    ("PackageChannelModule", "options_env"): _WHEN_ON,
    ("PackageChannelModule", "who_may_write"): _WHEN_ON,
}


def declared() -> set[Key]:
    models: list[type[BaseModel]] = [Settings, switchboard_config.BufferSection]
    for module in (config, roster, messenger_config, modules):
        models += _models(module)
    return {(model.__name__, field) for model in models for field in model.model_fields}


def _models(module: ModuleType) -> list[type[BaseModel]]:
    """The models a module defines, without those that are only bases of others."""
    classes = [thing for thing in vars(module).values() if isinstance(thing, type) and issubclass(thing, BaseModel)]
    return [model for model in classes if model.__module__ == module.__name__ and not model.__subclasses__()]


@contextmanager
def watched() -> Iterator[set[Key]]:
    """Notes which fields are read, also those that are read all at once."""
    seen: set[Key] = set()

    def read(self: BaseModel, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name in type(self).model_fields and not _looks_for_scopes(value, sys._getframe(1)):
            seen.add((type(self).__name__, name))
        return value

    def read_all(self: BaseModel, **how: Any) -> dict[str, Any]:
        seen.update((type(self).__name__, name) for name in type(self).model_fields)
        return BaseModel.model_dump(self, **how)

    bases: tuple[Any, ...] = (Settings, Section, modules.ModuleSection)
    try:
        for base in bases:
            base.__getattribute__, base.model_dump = read, read_all
        yield seen
    finally:
        for base in bases:
            del base.__getattribute__, base.model_dump


def _looks_for_scopes(value: Any, reader: FrameType) -> bool:
    """`required_variables` touches every field of every module to find the scopes among them: that is not reading."""
    return reader.f_code.co_name == "required_variables" and isinstance(value, str)


async def reads(tmp_path: Path, server: EmbeddedPostgres, **settings: Any) -> set[Key]:
    async with running_system(tmp_path, server, start=False, **settings) as running:
        with watched() as seen:
            await running.start()
            if running.settings.llm == "off":
                reply = await running.ingest("I paid the electricity bill")
                await running.finished(reply["request_id"])
            await running.stop()
    return seen


@pytest.mark.slow
async def test_every_key_is_read_by_the_running_system(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    seen = await reads(tmp_path / "local", postgres_server)
    seen |= await reads(tmp_path / "llm", postgres_server, llm="on")
    assert declared() - seen == READ_LATER.keys() | NOT_READ_YET.keys()


@pytest.mark.slow
def test_what_is_read_at_another_moment_is_read_somewhere() -> None:
    """A field counts as read where its name, or a property of the settings that uses it, is read outside."""
    using = _properties_using()
    outside = set().union(*(_attributes(file.tree) for file in source_files() if file.path != "daemon/settings.py"))
    unread = {field for _, field in READ_LATER if not {field, *using.get(field, set())} & outside}
    assert unread == set()


def test_the_watch_sees_a_read() -> None:
    with watched() as seen:
        section = config.ShutdownSection()
        assert seen == set()
        assert section.timeout_s == 30
        switchboard_config.BufferSection().model_dump()
    assert ("ShutdownSection", "timeout_s") in seen
    assert ("BufferSection", "worker_count") in seen
    assert ("RuntimeSection", "model") not in seen
    assert "__getattribute__" not in vars(Section)


def _properties_using() -> dict[str, set[str]]:
    tree = ast.parse(Path(settings_module.__file__).read_text(encoding="utf-8"))
    [cls] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Settings"]
    methods = [node for node in cls.body if isinstance(node, ast.FunctionDef)]
    return {field: {m.name for m in methods if field in _attributes(m)} for field in Settings.model_fields}


def _attributes(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
