"""What the Bot API's refusals mean to the operator, for whoever calls it: the connector, the channel, the probes.

Telegram's own description of a failure stays out of it: the code says enough, and the words may quote a message.
"""

from __future__ import annotations

import ssl

from butlers.errors import ClassifiedError, TargetUnavailable, TimeoutExceeded

_TOKEN_REMEDY = "set BUTLER_TELEGRAM_TOKEN to the token that @BotFather shows for the bot, and start again"  # noqa: S105
_AWAY_REMEDY = "check the network, a proxy's settings and telegram_api_url; it is tried again by itself"
_OTHER_POLLER = "stop the other program that polls with this token, or delete the bot's webhook"


def refusal(code: object, *, retry_after: float | None = None) -> ClassifiedError:
    """An answer that is not ok."""
    if code in (401, 404):
        return TargetUnavailable("Telegram refuses the bot's token", retryable=False, remedy=_TOKEN_REMEDY)
    if code == 409:
        return TargetUnavailable("Telegram answered 409: somebody else polls with this token", remedy=_OTHER_POLLER)
    return TargetUnavailable(f"Telegram answered {code}", retry_after=retry_after, remedy=_AWAY_REMEDY)


def unreachable(error: Exception, *, host: str = "") -> ClassifiedError:
    """No answer of Telegram's own."""
    where = f" at {host}" if host else ""
    if isinstance(error, TimeoutError):
        return TimeoutExceeded(f"Telegram gave no answer in time{where}", remedy=_AWAY_REMEDY)
    if _is_untrusted(error):
        remedy = "set SSL_CERT_FILE to the authority that signs on this network, or correct telegram_api_url"
        return TargetUnavailable(f"Telegram's certificate is not trusted{where}", remedy=remedy)
    return TargetUnavailable(f"Telegram is unreachable{where} ({type(error).__name__})", remedy=_AWAY_REMEDY)


def _is_untrusted(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
