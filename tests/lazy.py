"""Modules that take seconds to import, for the few tests that need them: each process collects every file."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Imports what it stands for when a public name of it is asked for; pytest looks for others while it collects."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)
