"""Modules: the contract of a part that a butler loads when its butler.toml has a table for it, and those tables."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    create_model,
    field_validator,
    model_validator,
)

from butlers.channels.registry import channels, outbound_names, registry
from butlers.errors import ConfigurationError
from butlers.telemetry import get_logger

log = get_logger("butlers.modules")

# What a module needs to have running before it; calendars and memories stand alone.
REQUIRES: Mapping[str, tuple[str, ...]] = {
    "memory": (),
    "calendar": (),
    **dict.fromkeys(outbound_names(), ()),
    "approvals": outbound_names(),
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CLOCK_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
GATED_BY_DEFAULT = ("telegram_send_message", "email_send_message", "notify")


async def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    name: str
    start: Callable[[], Awaitable[None]] = _nothing
    stop: Callable[[], Awaitable[None]] = _nothing


def in_dependency_order(
    names: Iterable[str], requires: Mapping[str, tuple[str, ...]] = REQUIRES, *, source: str = "butler.toml"
) -> list[str]:
    """The names so that each stands after what it needs; needs that are not loaded do not count."""
    loaded = sorted(set(names))
    graph = {name: [need for need in requires.get(name, ()) if need in loaded] for name in loaded}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise ConfigurationError(
            f"modules need each other: {cycle}", source=source, key="modules", remedy="remove one of them"
        ) from error


class ModuleHost:
    """Starts and stops the modules of one butler."""

    def __init__(self, modules: Mapping[str, Module], *, source: str = "butler.toml") -> None:
        self._modules = modules
        self._order = in_dependency_order(modules, source=source)
        self._stack = AsyncExitStack()

    @property
    def names(self) -> list[str]:
        return list(self._order)

    async def start(self) -> None:
        async with AsyncExitStack() as starting:
            for name in self._order:
                await self._modules[name].start()
                starting.push_async_callback(self._modules[name].stop)
                log.debug("module started", module=name)
            self._stack = starting.pop_all()

    async def stop(self) -> None:
        await self._stack.aclose()


def _is_variable_name(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError("must be the name of an environment variable (letters, digits, underscore)")
    return value


VariableName = Annotated[str, AfterValidator(_is_variable_name)]
OptionName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]


def _is_clock_time(value: str) -> str:
    if not _CLOCK_TIME.fullmatch(value):
        raise ValueError("must be a time of day, HH:MM")
    return value


ClockTime = Annotated[str, AfterValidator(_is_clock_time)]


class ModuleSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Scope(ModuleSection):
    """A credential scope: which variables hold its secrets."""

    enabled: bool = Field(default=True, description="false: unused, and its variables are not required")

    def variables(self) -> Iterator[tuple[str, str]]:
        for name in type(self).model_fields:
            if name.endswith("_env"):
                yield name, getattr(self, name)


class TelegramBotScope(Scope):
    token_env: VariableName = Field(
        default="BUTLER_TELEGRAM_TOKEN", description="environment variable that holds the bot's token"
    )


class TelegramUserScope(Scope):
    enabled: bool = Field(default=False, description="false: unused, and its variables are not required")
    token_env: VariableName = Field(
        default="USER_TELEGRAM_TOKEN", description="environment variable that holds the owner's token"
    )


class EmailBotScope(Scope):
    address_env: VariableName = Field(
        default="BUTLER_EMAIL_ADDRESS", description="environment variable that holds the bot's mail address"
    )
    password_env: VariableName = Field(
        default="BUTLER_EMAIL_PASSWORD", description="environment variable that holds the bot's mail password"
    )


class EmailUserScope(Scope):
    enabled: bool = Field(default=False, description="false: unused, and its variables are not required")
    address_env: VariableName = Field(
        default="USER_EMAIL_ADDRESS", description="environment variable that holds the owner's mail address"
    )
    password_env: VariableName = Field(
        default="USER_EMAIL_PASSWORD", description="environment variable that holds the owner's mail password"
    )


class TelegramModule(ModuleSection):
    parse_mode: Literal["HTML", "none"] = Field(
        default="HTML", description="HTML: light Markdown is rendered; none: messages are sent as they stand"
    )
    bot: TelegramBotScope = TelegramBotScope()
    user: TelegramUserScope = TelegramUserScope()


class EmailModule(ModuleSection):
    inbox: str = Field(default="INBOX", min_length=1, description="the folder that new mail and bounces come to")
    sent_folder: str | None = Field(
        default=None, description="where the provider keeps what was sent; unset: a lost answer cannot be looked up"
    )
    bot: EmailBotScope = EmailBotScope()
    user: EmailUserScope = EmailUserScope()


class CalendarBotScope(ModuleSection):
    """Not a `Scope`, because it is optional: the calendar is connected when all of these variables have a value."""

    client_id_env: VariableName = Field(
        default="BUTLER_CALENDAR_CLIENT_ID",
        description="environment variable that holds the OAuth client's id; unset: the calendar is not connected",
    )
    client_secret_env: VariableName = Field(
        default="BUTLER_CALENDAR_CLIENT_SECRET",
        description="environment variable that holds the OAuth client's secret; unset: the calendar is not connected",
    )
    refresh_token_env: VariableName = Field(
        default="BUTLER_CALENDAR_REFRESH_TOKEN",
        description="environment variable that holds the refresh token; unset: the calendar is not connected",
    )

    def variables(self) -> tuple[str, ...]:
        return self.client_id_env, self.client_secret_env, self.refresh_token_env


class CalendarModule(ModuleSection):
    provider: Literal["google"] = Field(default="google", description="whose calendar")
    conflicts: Literal["suggest", "reject", "allow"] = Field(
        default="suggest", description="what happens to an event that collides with another"
    )
    calendar_id: str = Field(default="primary", min_length=1, description="which of the account's calendars")
    day_start: ClockTime = Field(default="08:00", description="no time before this is suggested (calendar's time zone)")
    day_end: ClockTime = Field(default="20:00", description="no time after this is suggested")
    timeout_s: float = Field(default=10.0, gt=0, description="seconds one call of the provider may take")
    bot: CalendarBotScope = CalendarBotScope()

    @model_validator(mode="after")
    def _day_has_hours(self) -> Self:
        if self.day_start >= self.day_end:
            raise ValueError("day_end must be later than day_start")
        return self


class MemoryModule(ModuleSection):
    episode_ttl_days: float = Field(
        default=7.0, gt=0, le=365, allow_inf_nan=False, description="days until what happened is forgotten"
    )
    important_from: float = Field(
        default=0.7,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="importance from which an episode that nobody has read outlives that, up to 30 days",
    )


class ApprovalsModule(ModuleSection):
    """Loading the module gates these tools; without it nothing is gated."""

    gated_tools: list[str] = Field(
        default=list(GATED_BY_DEFAULT),
        description="tools whose calls wait for a person; a list, or a table of name = true",
    )
    expiry_hours: float = Field(default=48.0, gt=0, description="hours an action waits for its decision")

    @field_validator("gated_tools", mode="before")
    @classmethod
    def _may_be_a_table(cls, value: Any) -> Any:
        return [name for name, gated in value.items() if gated is not False] if isinstance(value, dict) else value


class ChannelOptions(ModuleSection):
    """What code of another package is told (docs/operating/channels.md)."""

    options: dict[str, Any] = Field(default={}, description="handed to the adapter as they stand")
    options_env: dict[OptionName, VariableName] = Field(
        default={}, description="the adapter's secrets: name = environment variable that holds it"
    )


class ChannelModule(ChannelOptions):
    """A channel whose adapter is found by name among the installed ones."""

    adapter: str = Field(min_length=1, description="name of the adapter, in the entry-point group butlers.channels")


class PackageChannelModule(ChannelOptions):
    """A channel that another package brings: Messenger's table switches its way out on, Switchboard's its way in."""

    who_may_write: Literal["owner", "contacts", "pairing", "open"] = Field(
        default="owner", description="whose messages are served, in Switchboard's butler.toml"
    )


class Modules(ModuleSection):
    """The modules a butler loads: those whose table stands in its file."""

    telegram: TelegramModule | None = None
    email: EmailModule | None = None
    sms: ChannelModule | None = None
    chat: ChannelModule | None = None
    calendar: CalendarModule | None = None
    approvals: ApprovalsModule | None = None
    memory: MemoryModule | None = Field(default=None)

    def enabled(self) -> tuple[str, ...]:
        return tuple(name for name in type(self).model_fields if getattr(self, name) is not None)

    def required_variables(self) -> Iterator[tuple[str, str]]:
        """(key in butler.toml, variable name) of every enabled scope."""
        for module_name in self.enabled():
            module = getattr(self, module_name)
            if isinstance(module, ChannelOptions):
                for option, variable in module.options_env.items():
                    yield f"modules.{module_name}.options_env.{option}", variable
            for scope_name in type(module).model_fields:
                scope = getattr(module, scope_name)
                if isinstance(scope, Scope) and scope.enabled:
                    for key, variable in scope.variables():
                        yield f"modules.{module_name}.{scope_name}.{key}", variable


@cache
def installed_modules() -> type[Modules]:
    """`Modules` with a table for every channel that another package brings."""
    brought = [
        name for name in channels() if registry().packages[name] != "butlers" and name not in Modules.model_fields
    ]
    fields: dict[str, Any] = dict.fromkeys(brought, (PackageChannelModule | None, None))
    return create_model("Modules", __base__=Modules, **fields) if fields else Modules
