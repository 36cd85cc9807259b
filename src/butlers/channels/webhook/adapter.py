"""Any gateway that takes a message as an HTTP POST: the shipped adapter for `sms` and `chat`.

    POST url          {delivery_id, idempotency_key, channel, intent, recipient, message, subject?, emoji?}, signed

Like every adapter it counts a message as gone from the moment its body begins to leave. A gateway that keeps our
`Idempotency-Key` makes the second attempt safe: `idempotent = true` says so, and `resend_is_safe` passes it on.

What the answer means:

2xx {"id"}                  taken
409 {"id", "delivery_id"}   taken before, when it is our delivery; otherwise the key belongs to another message
4xx                         refused: 410 the recipient is gone, 429 wait, 401 and 403 our credentials
408, 425                    not taken in; worth another attempt
5xx {"error": "not_taken"}  failed, in the gateway's own words: certain, and worth another attempt
502, 504, any other 5xx     nobody knows: front ends answer so, in JSON, too, while the gateway goes on working
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
from pydantic_core import from_json

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Outgoing, Sent, Throttle, Wire
from butlers.channels.plugins import ChannelSettings
from butlers.errors import ClassifiedError, TargetUnavailable, TimeoutExceeded, ValidationError
from butlers.http_client import BoundedAsyncClient, UnreadableAnswer, authorities, reason, retry_after
from butlers.messenger.receipts import signed_headers
from butlers.serving.server import is_loopback

FIND_TIMEOUT_S = 10.0
ANSWER_LIMIT = 65_536  # bytes of an answer that are looked at
_BODY_LEAVES = "send_request_body.started"
_OPTIONS = frozenset({"url", "status_url", "idempotent"})
_SECRETS = frozenset({"signing_key", "api_key", "receipt_key"})
NOT_TAKEN = "not_taken"  # the one word of a failed gateway that a front end does not say by chance
_ON_THE_WAY = frozenset({502, 504})  # are about a gateway, and so not from it
_LONGEST_ID = 512
_CODE = re.compile(r"[a-z]{2,20}(?:_[a-z]{2,20}){1,4}")  # no_such_number, and not a word of the message or a key
_BIGGEST_ID = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back, from the gateway or from a front end."""

    status: int
    body: Mapping[str, Any] | None  # the gateway's own words; None: not JSON, so not the gateway's
    retry_after: float | None = None

    @property
    def identifier(self) -> str | None:
        given = self.body.get("id") if self.body else None
        if isinstance(given, int) and not isinstance(given, bool) and abs(given) < _BIGGEST_ID:
            return str(given)
        usable = isinstance(given, str) and given.strip() and "\x00" not in given and len(given) <= _LONGEST_ID
        return str(given) if usable else None

    @property
    def disowns(self) -> bool:
        """Whether a failed gateway says that it has not taken the message and will not."""
        error = self.body.get("error") if self.body else None
        return error == NOT_TAKEN and self.status not in _ON_THE_WAY

    @property
    def reason(self) -> str:
        """The status, with the gateway's code for it. Its sentences stay out of every record: they may quote the
        message or a credential.
        """
        given = self.body.get("error") if self.body else None
        coded = isinstance(given, str) and _CODE.fullmatch(given)
        return f"HTTP {self.status}" + (f": {given}" if coded else "")


def result_of(answer: Answer, outgoing: Outgoing) -> AttemptResult:
    if 200 <= answer.status < 300:
        return _taken(answer)
    if answer.status == 409:
        return _conflict(answer, outgoing)
    if answer.status >= 500 and not answer.disowns:
        return _uncertain(answer, f"the gateway, or something on the way to it, answered {answer.reason}")
    throttle = None
    if answer.status == 429 and answer.retry_after is not None:
        of_recipient = answer.body is not None and answer.body.get("scope") == "recipient"
        throttle = Throttle(scope="target" if of_recipient else "channel", seconds=answer.retry_after)
    return NotSent(
        error=refusal(answer),
        answered=True,
        response={"status": answer.status},
        throttle=throttle,
        recipient_gone=answer.status == 410,
    )


def refusal(answer: Answer) -> ClassifiedError:
    match answer.status:
        case 410:
            return TargetUnavailable(f"the recipient is gone ({answer.reason})", retryable=False)
        case 429:
            return TargetUnavailable(f"the gateway asks to wait ({answer.reason})", retry_after=answer.retry_after)
        case 401 | 403:
            return TargetUnavailable(f"the gateway refuses our credentials ({answer.reason})", retryable=False)
        case 408 | 425:
            return TargetUnavailable(f"the gateway did not take it in ({answer.reason})")
        case status if status >= 500:
            return TargetUnavailable(f"the gateway failed ({answer.reason})", retry_after=answer.retry_after)
        case status if status < 400:
            return TargetUnavailable(f"the gateway's address has changed ({answer.reason})", retryable=False)
    return ValidationError(f"the gateway refused the message ({answer.reason})")


def _taken(answer: Answer) -> AttemptResult:
    if answer.identifier is None:
        return _uncertain(answer, f"the gateway's answer names no message ({answer.reason})")
    return Sent(provider_delivery_id=answer.identifier, response={"status": answer.status, "id": answer.identifier})


def _conflict(answer: Answer, outgoing: Outgoing) -> AttemptResult:
    theirs = str(answer.body.get("delivery_id", "")).lower() if answer.body else ""
    if theirs == str(outgoing.delivery_id) and answer.identifier is not None:
        return _taken(answer)
    if theirs and theirs != str(outgoing.delivery_id):
        error = ValidationError(f"the gateway has another message under this key ({answer.reason})")
        return NotSent(error=error, answered=True, response={"status": answer.status})
    return _uncertain(answer, f"the gateway speaks of a conflict and not of which ({answer.reason})")


def _uncertain(answer: Answer, what: str) -> NotSent:
    error = TargetUnavailable(what, retry_after=answer.retry_after)
    return NotSent(error=error, certainty=Certainty.UNCERTAIN, response={"status": answer.status})


def decoded(content: bytes) -> Mapping[str, Any] | None:
    """An answer in the gateway's own words, that is as a JSON object; None for anything else."""
    try:
        body = from_json(content, allow_inf_nan=False)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    url: str  # takes messages
    signing_key: str = field(repr=False)
    api_key: str | None = field(default=None, repr=False)  # sent as a bearer token
    status_url: str | None = None  # knows messages: {delivery_id} or {idempotency_key} stands for the one asked about
    idempotent: bool = False  # the gateway recognises a message that comes again


class WebhookChannel:
    def __init__(self, settings: ChannelSettings, webhook: WebhookSettings) -> None:
        self.name = settings.channel
        self.identity_scope = settings.identity_scope
        self.resumes = False
        self.resend_is_safe = webhook.idempotent
        self._clock = settings.clock
        self._webhook = webhook
        # Nothing packed: a small answer could unfold to more than memory holds.
        headers = {"Accept-Encoding": "identity"}
        if webhook.api_key:
            headers["Authorization"] = f"Bearer {webhook.api_key}"
        trusting = not is_loopback(webhook.url)
        self._client = BoundedAsyncClient(
            limit=ANSWER_LIMIT,
            headers=headers,
            timeout=None,
            follow_redirects=False,
            verify=authorities(trust_env=trusting),
            trust_env=trusting,
        )

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, wire: Wire) -> AttemptResult:
        if (known := outgoing.parts_sent.get(1)) is not None:  # its receipt came before the attempt that needed it
            return Sent(provider_delivery_id=known)
        left = False

        async def trace(event: str, _info: Any) -> None:
            nonlocal left
            if event.endswith(_BODY_LEAVES):
                left = True
                wire.leaving()

        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._post(outgoing, trace)
        except (TimeoutError, httpx2.TimeoutException):
            return _unanswered(TimeoutExceeded(f"the gateway gave no answer within {timeout_s:g} s"), left)
        except httpx2.HTTPError as error:
            return _unanswered(TargetUnavailable(f"the gateway is unreachable ({reason(error)})"), left)
        return result_of(answer, outgoing)

    async def find(self, outgoing: Outgoing) -> str | None:
        """Ask the status address; only the gateway's own yes counts."""
        if self._webhook.status_url is None:
            return None
        try:
            async with asyncio.timeout(FIND_TIMEOUT_S):
                url = self._webhook.status_url.replace("{delivery_id}", quote(str(outgoing.delivery_id), safe=""))
                url = url.replace("{idempotency_key}", quote(outgoing.idempotency_key, safe=""))
                answer = await self._exchange("GET", url, b"", self._signed(b""))
        except (TimeoutError, httpx2.HTTPError):
            return None
        return answer.identifier if answer.status == 200 else None

    async def close(self) -> None:
        await self._client.aclose()

    async def _post(self, outgoing: Outgoing, trace: Any) -> Answer:
        body = json.dumps(message_body(self.name, outgoing), ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": quote(outgoing.idempotency_key, safe=":|")}
        return await self._exchange("POST", self._webhook.url, body, headers | self._signed(body), trace)

    async def _exchange(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], trace: Any = None
    ) -> Answer:
        extensions = {"trace": trace} if trace else {}
        async with self._client.stream(
            method, url, content=body or None, headers=dict(headers), extensions=extensions
        ) as response:
            try:
                document = decoded(await response.aread())
            except UnreadableAnswer:  # too long to be a gateway's: then its status speaks
                document = None
            waits = retry_after(response.headers.get("Retry-After"), now=self._clock.now())
            return Answer(status=response.status_code, body=document, retry_after=waits)

    def _signed(self, body: bytes) -> dict[str, str]:
        return signed_headers(self._webhook.signing_key, body, now=self._clock.now())


def make_channel(settings: ChannelSettings) -> WebhookChannel:
    """The factory behind the entry point `webhook`."""
    return WebhookChannel(settings, read_settings(settings))


def read_settings(settings: ChannelSettings) -> WebhookSettings:
    for table, known in (("options", _OPTIONS), ("options_env", _SECRETS)):
        given = settings.options if table == "options" else settings.secrets
        if unknown := sorted(given.keys() - known):
            problem = f"unknown key; the adapter webhook knows {', '.join(sorted(known))}"
            raise settings.mistake(f"{table}.{unknown[0]}", problem, "remove it or mend its spelling")
    if "signing_key" not in settings.secrets:
        remedy = 'name the variable that holds it: options_env = { signing_key = "..." }'
        raise settings.mistake("options_env.signing_key", "is required: messages are signed", remedy)
    if not all("!" <= character <= "~" for character in settings.secrets.get("api_key", "")):
        remedy = "check the variable for blanks and line ends"
        raise settings.mistake("options_env.api_key", "must be printable ASCII without blanks", remedy)
    idempotent = settings.options.get("idempotent", False)
    if not isinstance(idempotent, bool):
        raise settings.mistake("options.idempotent", "must be true or false", "write it without quotes")
    return WebhookSettings(
        url=_address(settings, "url"),
        status_url=_address(settings, "status_url") if "status_url" in settings.options else None,
        idempotent=idempotent,
        signing_key=settings.secrets["signing_key"],
        api_key=settings.secrets.get("api_key"),
    )


def message_body(channel: str, outgoing: Outgoing) -> dict[str, Any]:
    body = {
        "delivery_id": str(outgoing.delivery_id),
        "idempotency_key": outgoing.idempotency_key,
        "channel": channel,
        "intent": outgoing.intent,
        "recipient": outgoing.target,
        "message": outgoing.message,
        "subject": outgoing.subject,
        "emoji": outgoing.emoji,
    }
    return {name: value for name, value in body.items() if value is not None}


def _unanswered(error: ClassifiedError, left: bool) -> NotSent:
    return NotSent(error=error, certainty=Certainty.UNCERTAIN if left else Certainty.NOT_SENT)


def _address(settings: ChannelSettings, option: str) -> str:
    """An address that may be used: encrypted, unless it is on this machine."""
    url = settings.options.get(option)
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        host = parts.hostname if parts and parts.port != 0 else None
    except ValueError:
        parts = host = None
    if parts is None or not host or parts.scheme not in ("http", "https"):
        raise settings.mistake(f"options.{option}", "must be an http address", "write https://...")
    if parts.username or parts.password:
        raise settings.mistake(f"options.{option}", "must not hold credentials", "use options_env.api_key")
    if parts.scheme == "http" and not is_loopback(str(url)):
        raise settings.mistake(f"options.{option}", "must be encrypted beyond this machine", "use https://")
    return str(url)
