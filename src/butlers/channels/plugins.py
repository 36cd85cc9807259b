"""Adapters: the one that a channel brings itself, and those found by name in the entry-point group `butlers.channels`.

    [project.entry-points."butlers.channels"]
    acme = "acme_butlers:make_channel"          # make_channel(settings: ChannelSettings) -> Adapter

    butler.toml  ->  adapter = "acme"  ->  entry point  ->  factory(settings)  ->  checked against the port

Whatever is wrong on that way (no such adapter, two of one name, a package that cannot be imported, a factory that
raises, an object that is no channel) stops the start and names the file, the key and the remedy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from butlers.channels.adapter import Adapter
from butlers.channels.channel import Channel
from butlers.channels.registry import ATTRIBUTE, GROUP, registry
from butlers.clock import Clock
from butlers.errors import ConfigurationError

# Our own adapter, named here and not by an entry point, so that it is found in a tree that is not installed.
SHIPPED: Mapping[str, str] = {"webhook": "butlers.channels.webhook.adapter:make_channel"}
_ASYNC_METHODS = ("attempt", "find", "close")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSettings:
    """All that an adapter is told."""

    channel: str  # sms | chat
    clock: Clock
    identity_scope: str = "bot"
    options: Mapping[str, Any] = field(default_factory=dict)  # as they stand in butler.toml
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # the values behind options_env
    source: str = "butler.toml"  # where the options stand

    def mistake(self, key: str, problem: str, remedy: str) -> ConfigurationError:
        """What an adapter raises about a key below its module, such as `options.url`."""
        return ConfigurationError(problem, source=self.source, key=f"modules.{self.channel}.{key}", remedy=remedy)


ChannelFactory = Callable[[ChannelSettings], Adapter]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledAdapter:
    name: str
    factory: str  # module:attribute
    package: str  # whose it is

    def load(self) -> ChannelFactory:
        return cast("ChannelFactory", EntryPoint(name=self.name, value=self.factory, group=GROUP).load())


def installed_adapters() -> tuple[InstalledAdapter, ...]:
    shipped = [InstalledAdapter(name=name, factory=factory, package="butlers") for name, factory in SHIPPED.items()]
    found = [
        InstalledAdapter(name=entry.name, factory=entry.value, package=entry.dist.name if entry.dist else "?")
        for entry in entry_points(group=GROUP)
        if entry.attr != ATTRIBUTE and not (entry.dist and entry.dist.name == "butlers")
    ]
    return tuple(dict.fromkeys(shipped + found))


def load_channel(name: str, settings: ChannelSettings) -> Adapter:
    return _built(choose(name, installed_adapters(), settings), settings)


def own_adapter(channel: Channel, settings: ChannelSettings) -> Adapter:
    if channel.outbound is None or channel.outbound.adapter is None:
        raise settings.mistake("adapter", "the channel brings none of its own", "name one: adapter = ...")
    package = registry().packages.get(channel.name, "?")
    return _built(InstalledAdapter(name=channel.name, factory=channel.outbound.adapter, package=package), settings)


def _built(adapter: InstalledAdapter, settings: ChannelSettings) -> Adapter:
    name = adapter.name
    try:
        channel = adapter.load()(settings)
    except ConfigurationError:
        raise
    except Exception as error:
        # The type only: the message of a foreign exception may quote a secret it was given.
        problem = f"adapter {name!r} of package {adapter.package} failed to start ({type(error).__name__})"
        raise settings.mistake("adapter", problem, "mend or update that package, or choose another adapter") from error
    if (problem_found := problem_with(channel, settings)) is not None:
        problem = f"adapter {name!r} of package {adapter.package} is no channel: {problem_found}"
        raise settings.mistake("adapter", problem, "mend or update that package, or choose another adapter")
    return channel


def choose(name: str, installed: Iterable[InstalledAdapter], settings: ChannelSettings) -> InstalledAdapter:
    candidates = list(installed)
    named = [adapter for adapter in candidates if adapter.name == name]
    if not named:
        known = ", ".join(sorted({adapter.name for adapter in candidates})) or "none"
        problem = f"no adapter is called {name!r}; installed: {known}"
        raise settings.mistake("adapter", problem, "install the package that brings it, or mend the spelling")
    if len(named) > 1:
        packages = " and ".join(sorted(adapter.package for adapter in named))
        problem = f"{len(named)} adapters are called {name!r}: of {packages}"
        raise settings.mistake("adapter", problem, "uninstall one of the packages")
    return named[0]


def problem_with(channel: object, settings: ChannelSettings) -> str | None:
    """What keeps an object from being the channel that was asked for."""
    expected = {"name": settings.channel, "identity_scope": settings.identity_scope}
    for attribute, value in expected.items():
        if getattr(channel, attribute, None) != value:
            return f"its {attribute} must be {value!r}"
    if not isinstance(getattr(channel, "resumes", None), bool):
        return "it needs resumes: True or False"
    for method in _ASYNC_METHODS:
        if not inspect.iscoroutinefunction(getattr(channel, method, None)):
            return f"it needs an async method {method}"
    methods: Any = channel
    try:
        inspect.signature(methods.attempt).bind(object(), timeout_s=1.0, wire=object())
        inspect.signature(methods.find).bind(object())
    except (TypeError, ValueError):
        return "it must take attempt(outgoing, *, timeout_s, wire) and find(outgoing)"
    return None
