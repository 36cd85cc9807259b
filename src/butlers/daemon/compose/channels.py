"""Messenger's channels, by the name of provider and identity scope: `telegram.bot`, `email.bot`, `sms.bot`."""

from __future__ import annotations

from butlers.butler.config import ButlerConfig
from butlers.butler.module_config import (
    ChannelModule,
    EmailBotScope,
    EmailModule,
    EmailUserScope,
    TelegramBotScope,
    TelegramUserScope,
)
from butlers.daemon.compose.process import Process
from butlers.messenger.channel import Channel
from butlers.messenger.channels.email import EmailChannel
from butlers.messenger.channels.plugins import ChannelSettings, load_channel
from butlers.messenger.channels.telegram import TelegramChannel
from butlers.messenger.mailbox.imap import ImapAccount, ImapClient

RECEIPT_KEY = "receipt_key"  # the secret that opens /webhooks/{channel}


def build_channels(process: Process, config: ButlerConfig) -> dict[str, Channel]:
    """Every channel whose module is on, ready to use."""
    own = (*_telegram(process, config), *_email(process, config))
    brought = (load_channel(module.adapter, _settings(process, config, name)) for name, module in _modules(config))
    channels: list[Channel] = [*own, *brought]
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


def _telegram(process: Process, config: ButlerConfig) -> list[Channel]:
    """Each identity scope has a channel with its own token, which no other scope sees."""
    module = config.modules.telegram
    if module is None:
        return []
    scopes: dict[str, TelegramBotScope | TelegramUserScope] = {"bot": module.bot, "user": module.user}
    return [
        TelegramChannel(
            token=process.environment[scope.token_env],
            base_url=process.settings.telegram_api_url,
            identity_scope=name,
            parse_mode=module.parse_mode,
        )
        for name, scope in scopes.items()
        if scope.enabled
    ]


def mail_client(process: Process, module: EmailModule, scope: EmailBotScope | EmailUserScope) -> ImapClient | None:
    """The mailbox of one identity scope, where there is a server to read it from."""
    settings = process.settings
    if settings.imap_host is None:
        return None
    return ImapClient(
        ImapAccount(
            host=settings.imap_host,
            port=settings.imap_port,
            address=process.environment[scope.address_env],
            password=process.environment[scope.password_env],
            tls_ca=settings.mail_tls_ca,
            inbox=module.inbox,
        )
    )


def _email(process: Process, config: ButlerConfig) -> list[Channel]:
    module = config.modules.email
    if module is None:
        return []
    scopes: dict[str, EmailBotScope | EmailUserScope] = {"bot": module.bot, "user": module.user}
    return [
        EmailChannel(
            host=process.settings.smtp_host,
            port=process.settings.smtp_port,
            address=process.environment[scope.address_env],
            password=process.environment[scope.password_env],
            identity_scope=name,
            tls_ca=process.settings.mail_tls_ca,
            imap=mail_client(process, module, scope),
            sent_folder=module.sent_folder,
        )
        for name, scope in scopes.items()
        if scope.enabled
    ]
