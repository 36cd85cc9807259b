"""Messenger's channels, by the name of provider and identity scope: `telegram.bot`, `email.bot`, `sms.bot`."""

from __future__ import annotations

from butlers.butler.config import ButlerConfig
from butlers.butler.module_config import ChannelModule
from butlers.daemon.compose.process import Process
from butlers.messenger.channel import Channel
from butlers.messenger.channels.email import EmailChannel
from butlers.messenger.channels.plugins import ChannelSettings, load_channel
from butlers.messenger.channels.telegram import TelegramChannel

RECEIPT_KEY = "receipt_key"  # the secret that opens /webhooks/{channel}


def build_channels(process: Process, config: ButlerConfig) -> dict[str, Channel]:
    """Every channel whose module is on, ready to use."""
    own = (_telegram(process, config), _email(process, config))
    brought = (load_channel(module.adapter, _settings(process, config, name)) for name, module in _modules(config))
    channels = [channel for channel in (*own, *brought) if channel is not None]
    return {f"{channel.name}.{channel.identity_scope}": channel for channel in channels}


def receipt_keys(process: Process, config: ButlerConfig) -> dict[str, str]:
    """The keys with which providers sign receipts, by channel; a channel without one has no door for them."""
    named = ((name, module.options_env.get(RECEIPT_KEY)) for name, module in _modules(config))
    return {name: process.environment[variable] for name, variable in named if variable is not None}


def _modules(config: ButlerConfig) -> list[tuple[str, ChannelModule]]:
    modules = ((name, getattr(config.modules, name)) for name in config.modules.enabled())
    return [(name, module) for name, module in modules if isinstance(module, ChannelModule)]


def _settings(process: Process, config: ButlerConfig, name: str) -> ChannelSettings:
    module: ChannelModule = getattr(config.modules, name)
    return ChannelSettings(
        channel=name,
        clock=process.clock,
        options=module.options,
        secrets={option: process.environment[variable] for option, variable in module.options_env.items()},
        source=config.source,
    )


def _telegram(process: Process, config: ButlerConfig) -> Channel | None:
    module = config.modules.telegram
    if module is None or not module.bot.enabled:
        return None
    token = process.environment[module.bot.token_env]
    return TelegramChannel(token=token, base_url=process.settings.telegram_api_url)


def _email(process: Process, config: ButlerConfig) -> Channel | None:
    module = config.modules.email
    if module is None or not module.bot.enabled:
        return None
    return EmailChannel(
        host=process.settings.smtp_host,
        port=process.settings.smtp_port,
        address=process.environment[module.bot.address_env],
        password=process.environment[module.bot.password_env],
    )
