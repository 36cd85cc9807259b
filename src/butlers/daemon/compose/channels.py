"""Messenger's channels, by the name of channel and identity scope: `telegram.bot`, `email.bot`, `sms.bot`.

Each is made by the adapter factory that its `Channel` value names, from what the settings, butler.toml and the
environment say; a scope never sees the secrets of another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from butlers.butler.modules import ChannelModule, ChannelOptions, Scope
from butlers.channels.adapter import Adapter
from butlers.channels.channel import Channel
from butlers.channels.email.adapter import make_mailbox
from butlers.channels.email.mailbox.imap import ImapClient
from butlers.channels.plugins import ChannelSettings, load_channel, own_adapter
from butlers.channels.registry import channel_of, channels, owner_credential_kinds
from butlers.clock import Clock
from butlers.contacts import Contacts
from butlers.daemon.settings import Settings
from butlers.roster import ButlerConfig

RECEIPT_KEY = "receipt_key"  # the secret that opens /webhooks/{channel}


class Accounts(Protocol):
    """What channels are built from: a running process has it, and so has `butlers doctor`, which has no more."""

    @property
    def settings(self) -> Settings: ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    @property
    def clock(self) -> Clock: ...


def build_channels(accounts: Accounts, config: ButlerConfig) -> dict[str, Adapter]:
    """Every channel whose module is on, ready to use."""
    found = [
        adapter
        for name, channel in channels().items()
        if name in config.modules.enabled()
        for adapter in _adapters(accounts, config, channel)
    ]
    return {f"{adapter.name}.{adapter.identity_scope}": adapter for adapter in found}


def bot_mailbox(accounts: Accounts, config: ButlerConfig) -> ImapClient | None:
    """The mailbox of the bot, where there is a server to read it from."""
    scoped = dict(_scopes(accounts, config, channel_of("email"))) if config.modules.email is not None else {}
    return make_mailbox(scoped["bot"]) if "bot" in scoped else None


def receipt_keys(accounts: Accounts, config: ButlerConfig) -> dict[str, str]:
    """The keys with which providers sign receipts, by channel; a channel without one has no door for them."""
    modules = ((name, getattr(config.modules, name)) for name in config.modules.enabled())
    named = ((name, m.options_env.get(RECEIPT_KEY)) for name, m in modules if isinstance(m, ChannelOptions))
    return {name: accounts.environment[variable] for name, variable in named if variable is not None}


def channel_settings(accounts: Accounts, config: ButlerConfig, channel: Channel) -> Iterator[ChannelSettings]:
    """What an adapter or a connector of the channel is told, for each identity scope that is on."""
    module = getattr(config.modules, channel.name)
    if not isinstance(module, ChannelOptions):
        yield from (settings for _, settings in _scopes(accounts, config, channel))
        return
    secrets = {option: accounts.environment[variable] for option, variable in module.options_env.items()}
    yield ChannelSettings(
        channel=channel.name, clock=accounts.clock, options=module.options, secrets=secrets, source=config.source
    )


def _adapters(accounts: Accounts, config: ButlerConfig, channel: Channel) -> Iterator[Adapter]:
    module = getattr(config.modules, channel.name)
    for settings in channel_settings(accounts, config, channel):
        if isinstance(module, ChannelModule):
            yield load_channel(module.adapter, settings)
        elif channel.outbound is not None:
            yield own_adapter(channel, settings)


def _scopes(accounts: Accounts, config: ButlerConfig, channel: Channel) -> Iterator[tuple[str, ChannelSettings]]:
    """The identity scopes that are on: the process's settings and the module's keys are their options."""
    module = getattr(config.modules, channel.name)
    of_process = {name: getattr(accounts.settings, name) for name in channel.settings}
    of_module = {name: getattr(module, name) for name in type(module).model_fields if name not in channel.credentials}
    for name in channel.credentials:
        scope: Scope = getattr(module, name)
        if scope.enabled:
            yield (
                name,
                ChannelSettings(
                    channel=channel.name,
                    clock=accounts.clock,
                    identity_scope=name,
                    options=of_process | of_module,
                    secrets={
                        key.removesuffix("_env"): accounts.environment[variable] for key, variable in scope.variables()
                    },
                    source=config.source,
                ),
            )


async def owner_credentials(
    configs: Iterable[ButlerConfig], environment: Mapping[str, str], contacts: Contacts
) -> dict[str, str]:
    """The variables of enabled user scopes that the environment does not set, by name."""
    owner = await contacts.owner()
    if owner is None:
        return {}
    found: dict[str, str] = {}
    kinds = owner_credential_kinds()
    for key, variable in (pair for config in configs for pair in config.modules.required_variables()):
        if key in kinds and not environment.get(variable):
            kind = kinds[key]
            look = contacts.identifier if kind in channels() else contacts.secret
            value = await look(owner.id, kind)
            found |= {variable: value} if value else {}
    return found
