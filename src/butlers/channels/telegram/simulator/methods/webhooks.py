"""Asking for updates by HTTP instead of fetching them. The delivery itself is in `delivery.py`."""

from __future__ import annotations

import re
from dataclasses import asdict
from urllib.parse import urlsplit

from butlers.channels.telegram.simulator.methods.call import Call
from butlers.channels.telegram.simulator.model import Webhook, Wire, bad_request
from butlers.channels.telegram.simulator.params import Params
from butlers.channels.telegram.simulator.updates import drop, drop_expired

_SECRET = re.compile(r"[A-Za-z0-9_-]*")
_MAX_SECRET = 256


def set_webhook(call: Call) -> bool:
    url = call.params.text("url")
    if not url:
        return delete_webhook(call)
    webhook = Webhook(
        url=_checked_url(url),
        secret_token=_checked_secret(call.params.text("secret_token")),
        max_connections=call.params.within("max_connections", 40, 1, 100),
    )
    remember_allowed(call)
    _drop_when_asked(call)
    call.world.commit({"change": "webhook_set", "bot": call.bot.id, "webhook": asdict(webhook)})
    return True


def delete_webhook(call: Call) -> bool:
    _drop_when_asked(call)
    if call.bot.webhook is not None:
        call.world.commit({"change": "webhook_set", "bot": call.bot.id, "webhook": None})
    return True


def get_webhook_info(call: Call) -> Wire:
    drop_expired(call.world, call.bot)
    webhook, error = call.bot.webhook, call.bot.webhook_error
    info: Wire = {
        "url": webhook.url if webhook else "",
        "has_custom_certificate": False,
        "pending_update_count": len(call.bot.pending),
    }
    if webhook:
        info["max_connections"] = webhook.max_connections
    if error:
        info["last_error_date"], info["last_error_message"] = error
    return info | ({"allowed_updates": list(call.bot.allowed_updates)} if call.bot.allowed_updates else {})


def remember_allowed(call: Call) -> None:
    """The kinds a bot asks for hold until it asks for others; no list means as before."""
    if "allowed_updates" not in call.params:
        return
    allowed = _kinds(call.params)
    if allowed != call.bot.allowed_updates:
        call.world.commit({"change": "allowed_updates_set", "bot": call.bot.id, "allowed": list(allowed)})


def _kinds(params: Params) -> tuple[str, ...]:
    kinds = params.structure("allowed_updates")
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise bad_request("can't parse allowed_updates JSON object")
    return tuple(dict.fromkeys(kinds))


def _drop_when_asked(call: Call) -> None:
    if call.params.flag("drop_pending_updates"):
        drop(call.world, call.bot, len(call.bot.pending))


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise bad_request("bad webhook: invalid URL") from None
    # Plain http is refused by the real service; a simulator mostly talks to its own machine.
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise bad_request("bad webhook: An HTTPS URL must be provided for webhook")
    return url


def _checked_secret(secret: str | None) -> str | None:
    if not secret:
        return None
    if len(secret) > _MAX_SECRET:
        raise bad_request("secret token is too long")
    if not _SECRET.fullmatch(secret):
        raise bad_request("secret token contains unallowed characters")
    return secret
