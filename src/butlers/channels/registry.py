"""The channels that are installed: the built-in ones, and those of other packages by entry point.

    [project.entry-points."butlers.channels"]
    pigeon = "pigeon_channel:CHANNEL"           # a Channel: it comes in and goes out without another change
    acme = "acme_butlers:make_channel"          # a factory: an adapter that butler.toml chooses for sms or chat

An entry point whose attribute is called CHANNEL is a channel. Its module is imported when the process first asks for
channels, so it must be light; everything heavy is named in the value and loaded when it is used. The entry point has
the channel's name. A package whose channel cannot be used does not stop the process: `problems` says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from butlers.channels.channel import AnswersGo, Channel, Feedback, Threads, load

GROUP = "butlers.channels"
ATTRIBUTE = "CHANNEL"
BUILT_IN = (
    "butlers.channels.telegram:CHANNEL",
    "butlers.channels.email:CHANNEL",
    "butlers.channels.webhook:SMS",
    "butlers.channels.webhook:CHAT",
    "butlers.channels.direct:API",
    "butlers.channels.direct:MCP",
)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    channels: Mapping[str, Channel]  # by name; built-in ones first
    problems: tuple[str, ...] = ()  # of packages whose channel cannot be used
    packages: Mapping[str, str] = field(default_factory=dict)  # channel -> the package that brings it


@cache
def registry() -> Registry:
    """What is installed, looked up once in a process."""
    found: dict[str, Channel] = {}
    for reference in BUILT_IN:
        channel: Channel = load(reference)
        found[channel.name] = channel
    packages = dict.fromkeys(found, "butlers")
    problems: list[str] = []
    entries = [entry for entry in entry_points(group=GROUP) if entry.value.endswith(f":{ATTRIBUTE}")]
    for entry in sorted(entries, key=lambda entry: entry.name):
        package = entry.dist.name if entry.dist else "?"
        brought = _brought(entry)
        if isinstance(brought, str):
            problems.append(f"channel {entry.name!r} of package {package} {brought}")
        elif brought.name in found:
            problems.append(
                f"channel {entry.name!r} of package {package} has the name of one of {packages[entry.name]}"
            )
        else:
            found[brought.name], packages[brought.name] = brought, package
    return Registry(channels=MappingProxyType(found), problems=tuple(problems), packages=MappingProxyType(packages))


def _brought(entry: EntryPoint) -> Channel | str:
    """The channel, or what is wrong with it."""
    try:
        channel = entry.load()
    except Exception as error:  # foreign code; its text may quote a secret
        return f"cannot be imported ({type(error).__name__})"
    if not isinstance(channel, Channel):
        return "is not a butlers.channels.channel.Channel"
    if not _NAME.fullmatch(channel.name) or channel.name != entry.name:
        return "must have the name of its entry point: small letters, digits and _"
    return channel


def channels() -> Mapping[str, Channel]:
    return registry().channels


@lru_cache(maxsize=256)  # names that are not installed come from outside
def channel_of(name: str) -> Channel:
    """The channel of that name; for a name that is not installed, one that does nothing special."""
    return channels().get(name) or Channel(name=name, title=name, threads=Threads.NONE, answers_go=AnswersGo.TO_OWNER)


def canonical_address(channel: str, address: str) -> str:
    """The one spelling that stands for an address in everything that is recorded about it."""
    return channel_of(channel).address.canonical(address)


def _names(chosen: Callable[[Channel], object]) -> tuple[str, ...]:
    return tuple(name for name, channel in channels().items() if chosen(channel))


@cache
def inbound_names() -> tuple[str, ...]:
    return _names(lambda channel: channel.inbound)


@cache
def outbound_names() -> tuple[str, ...]:
    """Channels that messages leave by; the first one is where the owner is told what has no other way."""
    return _names(lambda channel: channel.outbound)


@cache
def written_names() -> tuple[str, ...]:
    """Channels that people, and so strangers, write by."""
    return _names(lambda channel: channel.inbound and channel.inbound.written_by_people)


@cache
def pairing_names() -> tuple[str, ...]:
    """Channels on which a chat becomes the owner's by a code."""
    return _names(lambda channel: channel.inbound and channel.inbound.pairs_owner)


@cache
def own_names() -> tuple[str, ...]:
    """Channels on which a caller speaks for itself, and its token says who it is."""
    return _names(lambda channel: channel.inbound and not channel.inbound.written_by_people)


@cache
def reacting_names() -> tuple[str, ...]:
    """Channels on which the author of a message sees its state as a reaction."""
    return _names(lambda channel: channel.inbound and channel.inbound.feedback is Feedback.REACTIONS)


@cache
def followed_names() -> tuple[str, ...]:
    """Channels on which the author of a message is shown its end."""
    return _names(lambda channel: channel.inbound and channel.inbound.feedback is not Feedback.NONE)


def providers_of(name: str) -> tuple[str, ...]:
    inbound = channel_of(name).inbound
    return inbound.providers if inbound is not None else ()


@cache
def provider_names() -> tuple[str, ...]:
    return tuple(dict.fromkeys(provider for name in inbound_names() for provider in providers_of(name)))


@cache
def owner_credential_kinds() -> Mapping[str, str]:
    """The key in butler.toml of each credential of the owner's own accounts -> the kind that contacts keep it as: a
    secret by the names of channel and secret; an address, which everybody knows, by the channel's alone.
    """
    return {
        f"modules.{name}.user.{secret}_env": name if secret == "address" else f"{name}_{secret}"  # noqa: S105
        for name, channel in channels().items()
        for secret in channel.credentials.get("user", ())
    }


def listed(names: tuple[str, ...]) -> str:
    """The names as a sentence reads them: telegram, email or sms."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
