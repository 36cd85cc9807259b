"""Telegram Bot API.

`sendMessage` has no idempotency key, so certainty comes from how far an attempt got. Telegram cannot act on a request
whose body has not arrived: whatever fails before the body leaves sent nothing; after that, only an answer tells.
"""

from __future__ import annotations

from typing import Any

import httpx2

from butlers.errors import ClassifiedError, TargetUnavailable, TimeoutExceeded, ValidationError
from butlers.messenger.channel import AttemptResult, Certainty, NotSent, Outgoing, Sent, Wire
from butlers.serving import is_loopback

DEFAULT_BASE_URL = "https://api.telegram.org"
_BODY_LEAVES = "send_request_body.started"


class TelegramChannel:
    name = "telegram"
    identity_scope = "bot"

    def __init__(self, *, token: str, base_url: str = DEFAULT_BASE_URL) -> None:
        self._client = httpx2.AsyncClient(
            base_url=f"{base_url.rstrip('/')}/bot{token}/", timeout=None, trust_env=not is_loopback(base_url)
        )

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, wire: Wire) -> AttemptResult:
        left = False

        async def trace(event: str, _info: Any) -> None:
            nonlocal left
            if event.endswith(_BODY_LEAVES):
                left = True
                wire.leaving()

        method, body = _call(outgoing)
        try:
            response = await self._client.post(method, json=body, timeout=timeout_s, extensions={"trace": trace})
        except httpx2.TimeoutException:
            return _unanswered(TimeoutExceeded(f"Telegram gave no answer within {timeout_s:g} s"), left)
        except httpx2.HTTPError as error:
            return _unanswered(TargetUnavailable(f"Telegram is unreachable ({type(error).__name__})"), left)
        return _judge(response)

    async def find(self, outgoing: Outgoing) -> bool | None:
        return None

    async def close(self) -> None:
        await self._client.aclose()


def _call(outgoing: Outgoing) -> tuple[str, dict[str, Any]]:
    message_id = outgoing.source_event.get("message_id")
    if outgoing.intent == "react":
        reaction = [{"type": "emoji", "emoji": outgoing.emoji}]
        return "setMessageReaction", {"chat_id": outgoing.target, "message_id": message_id, "reaction": reaction}
    body: dict[str, Any] = {"chat_id": outgoing.target, "text": outgoing.message}
    if outgoing.intent == "reply" and message_id is not None:
        # The answer matters more than the thread: a deleted question must not stop it.
        body["reply_parameters"] = {"message_id": message_id, "allow_sending_without_reply": True}
    return "sendMessage", body


def _unanswered(error: ClassifiedError, left: bool) -> NotSent:
    return NotSent(error=error, certainty=Certainty.UNCERTAIN if left else Certainty.NOT_SENT)


def _judge(response: httpx2.Response) -> AttemptResult:
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or "ok" not in answer:
        # Not Telegram's own words but a gateway's on the way: the message may have come through.
        error = TargetUnavailable(f"Telegram's gateway answered HTTP {response.status_code}")
        return NotSent(error=error, certainty=Certainty.UNCERTAIN, response={"status": response.status_code})
    if answer["ok"]:
        return _sent(answer.get("result"))
    return NotSent(error=_refusal(answer), answered=True, response=_redacted(answer))


def _sent(result: Any) -> Sent:
    identifier = result.get("message_id") if isinstance(result, dict) else None
    return Sent(provider_delivery_id=str(identifier or "ok"), response={"message_id": identifier})


def _refusal(answer: dict[str, Any]) -> ClassifiedError:
    code, text = answer.get("error_code"), str(answer.get("description", ""))[:200]
    match code:
        case 429:
            return TargetUnavailable(f"Telegram asks to wait: {text}", retry_after=_retry_after(answer))
        case 403:
            return TargetUnavailable(f"the recipient cannot be reached: {text}", retryable=False)
        case 401 | 404:
            return TargetUnavailable(f"Telegram refuses the bot's token: {text}", retryable=False)
        case int() if code >= 500:
            return TargetUnavailable(f"Telegram failed: {text}")
    return ValidationError(f"Telegram refused the message: {text}")


def _retry_after(answer: dict[str, Any]) -> float | None:
    parameters = answer.get("parameters")
    seconds = parameters.get("retry_after") if isinstance(parameters, dict) else None
    return float(seconds) if isinstance(seconds, int | float) else None


def _redacted(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: answer.get(key) for key in ("error_code", "description", "parameters")}
