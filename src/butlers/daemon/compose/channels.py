"""Messenger's channels, by the name of provider and identity scope: `telegram.bot`, `email.bot`, `sms.bot`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from butlers.butler.config import ButlerConfig
from butlers.butler.module_config import (
    ChannelModule,
    EmailBotScope,
    EmailModule,
    EmailUserScope,
    TelegramBotScope,
    TelegramUserScope,
)
from butlers.clock import Clock
from butlers.daemon.settings import Settings
from butlers.messenger.channel import Channel
from butlers.messenger.channels.email import EmailChannel
from butlers.messenger.channels.plugins import ChannelSettings, load_channel
from butlers.messenger.channels.telegram import TelegramChannel
from butlers.messenger.mailbox.imap import ImapAccount, ImapClient
from butlers.messenger.mailbox.mail_server import MailServer

RECEIPT_KEY = "receipt_key"  # the secret that opens /webhooks/{channel}


class Accounts(Protocol):
    """What channels are built from: a running process has it, and so has `butlers doctor`, which has no more."""

    @property
    def settings(self) -> Settings: ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    @property
    def clock(self) -> Clock: ...


def build_channels(accounts: Accounts, config: ButlerConfig) -> dict[str, Channel]:
    """Every channel whose module is on, ready to use."""
    own = (*_telegram(accounts, config), *_email(accounts, config))
    brought = (load_channel(module.adapter, _settings(accounts, config, name)) for name, module in _modules(config))
    channels: list[Channel] = [*own, *brought]
    return {f"{channel.name}.{channel.identity_scope}": channel for channel in channels}


def receipt_keys(accounts: Accounts, config: ButlerConfig) -> dict[str, str]:
    """The keys with which providers sign receipts, by channel; a channel without one has no door for them."""
    named = ((name, module.options_env.get(RECEIPT_KEY)) for name, module in _modules(config))
    return {name: accounts.environment[variable] for name, variable in named if variable is not None}


def _modules(config: ButlerConfig) -> list[tuple[str, ChannelModule]]:
    modules = ((name, getattr(config.modules, name)) for name in config.modules.enabled())
    return [(name, module) for name, module in modules if isinstance(module, ChannelModule)]


def _settings(accounts: Accounts, config: ButlerConfig, name: str) -> ChannelSettings:
    module: ChannelModule = getattr(config.modules, name)
    return ChannelSettings(
        channel=name,
        clock=accounts.clock,
        options=module.options,
        secrets={option: accounts.environment[variable] for option, variable in module.options_env.items()},
        source=config.source,
    )


def _telegram(accounts: Accounts, config: ButlerConfig) -> list[Channel]:
    """Each identity scope has a channel with its own token, which no other scope sees."""
    module = config.modules.telegram
    if module is None:
        return []
    scopes: dict[str, TelegramBotScope | TelegramUserScope] = {"bot": module.bot, "user": module.user}
    return [
        TelegramChannel(
            token=accounts.environment[scope.token_env],
            base_url=accounts.settings.telegram_api_url,
            identity_scope=name,
            parse_mode=module.parse_mode,
        )
        for name, scope in scopes.items()
        if scope.enabled
    ]


def mail_client(accounts: Accounts, module: EmailModule, scope: EmailBotScope | EmailUserScope) -> ImapClient | None:
    """The mailbox of one identity scope, where there is a server to read it from."""
    settings = accounts.settings
    if settings.imap_host is None:
        return None
    server = MailServer(
        protocol="imap",
        host=settings.imap_host,
        port=settings.imap_port,
        tls=settings.imap_tls,
        tls_ca=settings.mail_tls_ca,
    )
    return ImapClient(
        ImapAccount(
            server=server,
            address=accounts.environment[scope.address_env],
            password=accounts.environment[scope.password_env],
            login=settings.mail_login if isinstance(scope, EmailBotScope) else None,
            inbox=module.inbox,
        )
    )


def _email(accounts: Accounts, config: ButlerConfig) -> list[Channel]:
    module = config.modules.email
    if module is None:
        return []
    scopes: dict[str, EmailBotScope | EmailUserScope] = {"bot": module.bot, "user": module.user}
    return [_mail_channel(accounts, module, name, scope) for name, scope in scopes.items() if scope.enabled]


def _mail_channel(
    accounts: Accounts, module: EmailModule, name: str, scope: EmailBotScope | EmailUserScope
) -> EmailChannel:
    """The names of the settings are the bot's; the owner's own account logs in with its address."""
    settings, is_bot = accounts.settings, isinstance(scope, EmailBotScope)
    server = MailServer(
        protocol="smtp",
        host=settings.smtp_host,
        port=settings.smtp_port,
        tls=settings.smtp_tls,
        tls_ca=settings.mail_tls_ca,
    )
    return EmailChannel(
        server=server,
        address=accounts.environment[scope.address_env],
        password=accounts.environment[scope.password_env],
        login=(settings.smtp_login or settings.mail_login) if is_bot else None,
        from_name=settings.mail_from_name if is_bot else None,
        identity_scope=name,
        imap=mail_client(accounts, module, scope),
        sent_folder=module.sent_folder,
    )
