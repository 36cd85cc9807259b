"""The `[modules.*]` part of butler.toml. Credentials are identity-scoped: bot and user never share a variable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _is_variable_name(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError("must be the name of an environment variable (letters, digits, underscore)")
    return value


VariableName = Annotated[str, AfterValidator(_is_variable_name)]


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
    bot: TelegramBotScope = TelegramBotScope()
    user: TelegramUserScope = TelegramUserScope()


class EmailModule(ModuleSection):
    bot: EmailBotScope = EmailBotScope()
    user: EmailUserScope = EmailUserScope()


class CalendarModule(ModuleSection):
    provider: Literal["google"] = Field(default="google", description="whose calendar")
    conflicts: Literal["suggest", "reject", "allow"] = Field(
        default="suggest", description="what happens to an event that collides with another"
    )


class MemoryModule(ModuleSection):
    pass


class Modules(ModuleSection):
    """The modules a butler loads: those whose table stands in its file."""

    telegram: TelegramModule | None = None
    email: EmailModule | None = None
    calendar: CalendarModule | None = None
    memory: MemoryModule | None = Field(default=None)

    def enabled(self) -> tuple[str, ...]:
        return tuple(name for name in type(self).model_fields if getattr(self, name) is not None)

    def required_variables(self) -> Iterator[tuple[str, str]]:
        """(key in butler.toml, variable name) of every enabled scope."""
        for module_name in self.enabled():
            module = getattr(self, module_name)
            for scope_name in type(module).model_fields:
                scope = getattr(module, scope_name)
                if isinstance(scope, Scope) and scope.enabled:
                    for key, variable in scope.variables():
                        yield f"modules.{module_name}.{scope_name}.{key}", variable
