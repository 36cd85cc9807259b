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

    enabled: bool = True

    def variables(self) -> Iterator[tuple[str, str]]:
        for name in type(self).model_fields:
            if name.endswith("_env"):
                yield name, getattr(self, name)


class TelegramBotScope(Scope):
    token_env: VariableName = "BUTLER_TELEGRAM_TOKEN"  # noqa: S105 - a variable's name


class TelegramUserScope(Scope):
    enabled: bool = False
    token_env: VariableName = "USER_TELEGRAM_TOKEN"  # noqa: S105 - a variable's name


class EmailBotScope(Scope):
    address_env: VariableName = "BUTLER_EMAIL_ADDRESS"
    password_env: VariableName = "BUTLER_EMAIL_PASSWORD"  # noqa: S105 - a variable's name


class EmailUserScope(Scope):
    enabled: bool = False
    address_env: VariableName = "USER_EMAIL_ADDRESS"
    password_env: VariableName = "USER_EMAIL_PASSWORD"  # noqa: S105 - a variable's name


class TelegramModule(ModuleSection):
    bot: TelegramBotScope = TelegramBotScope()
    user: TelegramUserScope = TelegramUserScope()


class EmailModule(ModuleSection):
    bot: EmailBotScope = EmailBotScope()
    user: EmailUserScope = EmailUserScope()


class CalendarModule(ModuleSection):
    provider: Literal["google"] = "google"
    conflicts: Literal["suggest", "reject", "allow"] = "suggest"


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
