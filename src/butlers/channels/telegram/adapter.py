"""Telegram Bot API.

A message is a saga of parts. A part is sent only when all parts before it are on record as sent, so an attempt after a
failure goes on behind them; only the first part quotes the message that is answered.

    part 1 -> on record -> part 2 -> on record -> ... -> part N -> Sent
                             |
                             +-- refused, unanswered: NotSent, about this part and what follows it

Within an attempt a part is sent another way, each at most once: as plain text when Telegram cannot read the markup, and
to the new chat when a group has become a supergroup (which is also where the later parts go).

`sendMessage` has no idempotency key, so certainty comes from how far a request got (`Line`).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import httpx2

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Outgoing, Sent, Throttle, Wire
from butlers.channels.plugins import ChannelSettings
from butlers.channels.telegram.text import ParseMode, parts
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError, TargetUnavailable, TimeoutExceeded, ValidationError
from butlers.http_client import BoundedAsyncClient, authorities, reason
from butlers.messenger.attempt import text
from butlers.serving.server import is_loopback

DEFAULT_BASE_URL = "https://api.telegram.org"
DEFAULT_WAIT = 5.0  # seconds, when Telegram asks to wait without saying how long
ALLOWED = (
    *"👍👎❤🔥🥰👏😁🤔🤯😱🤬😢🎉🤩🤮💩🙏👌🕊🤡🥱🥴😍",
    *"🐳🌚🌭💯🤣⚡🍌🏆💔🤨😐🍓🍾💋🖕😈😴😭🤓👻👀🎃🙈",
    *"😇😨🤝✍🤗🫡🎅🎄☃💅🤪🗿🆒💘🙉🦄😘💊🙊😎👾🤷😡",
    *("❤️‍🔥", "👨‍💻", "🤷‍♂️", "🤷‍♀️"),  # several characters each
)
_LONGEST_WAIT = 10**9  # seconds; more is not meant as a time
_RETRY_AFTER = re.compile(r"retry after (\d{1,9})", re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*"?')
_TOKEN = re.compile(r"(?<!\d)\d{6,}:[\w-]{20,}")
_CANNOT_PARSE = "can't parse entities"
_PRESENTATION = "\ufe0f"  # asks for the coloured form; people write it or not, Telegram compares exactly
_SPELLINGS = {emoji.replace(_PRESENTATION, ""): emoji for emoji in ALLOWED}
_BODY_LEAVES = "send_request_body.started"
_ANSWER_AWAITED = "receive_response_headers.started"
_TOKEN_REMEDY = "set BUTLER_TELEGRAM_TOKEN to the token that @BotFather shows for the bot, and start again"  # noqa: S105
_AWAY_REMEDY = "check the network, a proxy's settings and telegram_api_url; it is tried again by itself"
_OTHER_POLLER = "stop the other program that polls with this token, or delete the bot's webhook"


def make_adapter(settings: ChannelSettings) -> TelegramChannel:
    return TelegramChannel(
        token=settings.secrets["token"],
        base_url=settings.options["telegram_api_url"],
        identity_scope=settings.identity_scope,
        parse_mode=settings.options["parse_mode"],
    )


class TelegramChannel:
    name = "telegram"
    resumes = True

    def __init__(
        self,
        *,
        token: str,
        base_url: str = DEFAULT_BASE_URL,
        identity_scope: str = "bot",
        parse_mode: ParseMode = "HTML",
    ) -> None:
        self.identity_scope = identity_scope
        self._parse_mode: ParseMode = parse_mode
        trusting = not is_loopback(base_url)
        self._client = BoundedAsyncClient(
            base_url=f"{base_url.rstrip('/')}/bot{token}/",
            timeout=None,
            verify=authorities(trust_env=trusting),
            trust_env=trusting,
        )

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, wire: Wire) -> AttemptResult:
        try:
            calls = compose(outgoing, parse_mode=self._parse_mode)
        except ValidationError as error:
            return NotSent(error=error, response={"phase": "composing"})
        deadline = asyncio.timeout(timeout_s).when()
        line = Line(client=self._client, wire=wire, timeout_s=timeout_s, deadline=deadline)
        saga, done, last = _Saga(calls=calls, line=line), outgoing.parts_sent, len(calls)
        for part in range(1, last):
            if part in done:
                continue
            result = await saga.send(part)
            if isinstance(result, NotSent):
                return result
            # However long that takes: what came through and is not on record would be sent twice.
            await wire.part_sent(part, result.provider_delivery_id)
        if last not in done:
            return await saga.send(last)
        evidence = {"phase": "on_record", "part": last, "parts": last}
        return Sent(provider_delivery_id=done[last], part=last, response=evidence, moved_to=saga.moved_to)

    def count_parts(self, outgoing: Outgoing) -> int:
        return len(compose(outgoing, parse_mode=self._parse_mode))

    def problem(self, outgoing: Outgoing) -> ValidationError | None:
        try:
            compose(outgoing, parse_mode=self._parse_mode)
        except ValidationError as error:
            return error
        return None

    async def find(self, outgoing: Outgoing) -> str | None:
        """A bot cannot read what it has written."""
        return None

    async def probe(self, *, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                answer = (await self._client.post("getMe", json={})).json()
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise unreachable(error, host=self._client.base_url.host) from error
        if not isinstance(answer, dict) or answer.get("ok") is not True:
            raise refusal(answer.get("error_code") if isinstance(answer, dict) else "nonsense")

    async def close(self) -> None:
        await self._client.aclose()


@dataclass(slots=True, kw_only=True)
class _Saga:
    """What the parts of one message share during one attempt."""

    calls: tuple[Call, ...]
    line: Line
    moved_to: str | None = None  # the chat that took the place of the recipient's

    async def send(self, part: int) -> AttemptResult:
        call, plain = self.calls[part - 1], False
        if self.moved_to is not None:
            call = call.to_chat(self.moved_to)
        while True:
            answer = await self.line.ask(call, part=part)
            if isinstance(answer, Answer) and answer.cannot_parse and call.plain_text is not None:
                call, plain = call.as_plain(), True
            elif isinstance(answer, Answer) and answer.moved_to and call.movable and self.moved_to is None:
                self.moved_to = answer.moved_to
                call = call.to_chat(answer.moved_to)
            else:
                break
        phase = answer.phase if isinstance(answer, Silence) else Phase.ANSWERED
        how = {"plain": True} if plain else {}
        evidence: dict[str, Any] = {"phase": phase.value, "part": part, "parts": len(self.calls), **how}
        if isinstance(answer, Silence):
            return NotSent(
                error=answer.error,
                certainty=answer.certainty,
                response=evidence if answer.status is None else evidence | {"status": answer.status},
                moved_to=self.moved_to,
                asked=answer.phase is not Phase.NOT_BEGUN,
            )
        if not answer.ok:
            return refused(answer, evidence=evidence, moved_to=self.moved_to)
        evidence["message_id"] = answer.message_id
        name = str(answer.message_id or "ok")
        return Sent(provider_delivery_id=name, part=part, response=evidence, moved_to=self.moved_to)


# --- one request: how far it got, and what its answer means ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    method: str
    body: Mapping[str, Any]
    plain_text: str | None = None  # for the case that Telegram cannot read the markup
    movable: bool = True  # it makes sense in another chat

    def to_chat(self, chat: str) -> Call:
        """The same for the chat that took this one's place; numbers of messages mean nothing there."""
        return replace(self, body=self._without("reply_parameters") | {"chat_id": chat})

    def as_plain(self) -> Call:
        return replace(self, body=self._without("parse_mode") | {"text": self.plain_text}, plain_text=None)

    def _without(self, name: str) -> dict[str, Any]:
        return {key: value for key, value in self.body.items() if key != name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    ok: bool
    message_id: int | None = None
    code: int  # Telegram's own, else that of HTTP
    description: str = ""  # without quotations
    retry_after: float | None = None  # seconds
    moved_to: str | None = None  # the supergroup that this group has become
    cannot_parse: bool = False  # it refuses the markup

    @property
    def wait(self) -> float | None:
        if self.code != 429:
            return None
        match = _RETRY_AFTER.search(self.description)
        seconds = float(match[1]) if match else DEFAULT_WAIT
        return max(1.0, seconds if self.retry_after is None else self.retry_after)

    def refusal_evidence(self) -> dict[str, Any]:
        moved_to = None if self.moved_to is None else int(self.moved_to)
        named = {"retry_after": self.retry_after, "migrate_to_chat_id": moved_to}
        parameters = {name: value for name, value in named.items() if value is not None}
        evidence: dict[str, Any] = {"error_code": self.code, "description": self.description}
        return evidence | ({"parameters": parameters} if parameters else {})


class Phase(StrEnum):
    NOT_BEGUN = "not_begun"
    CONNECTING = "connecting"
    BODY_LEAVING = "body_leaving"
    ANSWER_AWAITED = "answer_awaited"
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Telegram gave no answer of its own."""

    phase: Phase
    error: ClassifiedError
    status: int | None = None  # what a gateway said instead

    @property
    def certainty(self) -> Certainty:
        harmless = self.phase in (Phase.NOT_BEGUN, Phase.CONNECTING)
        return Certainty.NOT_SENT if harmless else Certainty.UNCERTAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The way to Telegram during one attempt; all requests share its deadline."""

    client: httpx2.AsyncClient
    wire: Wire
    timeout_s: float
    deadline: float | None = None  # of the event loop's clock

    async def ask(self, call: Call, *, part: int) -> Answer | Silence:
        now = asyncio.timeout(0).when()  # on the same scale as the deadline
        if self.deadline is not None and now is not None and now >= self.deadline:
            return Silence(phase=Phase.NOT_BEGUN, error=TimeoutExceeded("no time was left to ask Telegram"))
        phase = Phase.CONNECTING

        async def trace(event: str, info: Any) -> None:
            nonlocal phase
            # Asking a proxy for a way through is traced like the request itself, and brings nothing to Telegram.
            if getattr(info.get("request"), "method", None) == b"CONNECT":
                return
            if event.endswith(_BODY_LEAVES):
                self.wire.leaving(part)
                phase = Phase.BODY_LEAVING
            elif event.endswith(_ANSWER_AWAITED) and phase is Phase.BODY_LEAVING:
                phase = Phase.ANSWER_AWAITED

        try:
            async with asyncio.timeout_at(self.deadline):
                response = await self.client.post(call.method, json=call.body, extensions={"trace": trace})
        except TimeoutError:
            return Silence(phase=phase, error=TimeoutExceeded(f"Telegram gave no answer within {self.timeout_s:g} s"))
        except httpx2.HTTPError as error:
            return Silence(phase=phase, error=TargetUnavailable(f"Telegram is unreachable ({reason(error)})"))
        return read(response) or _gateway(response.status_code)


def _gateway(status: int) -> Silence:
    """Not Telegram's own words but those of a gateway on the way: the message may have come through."""
    error = TargetUnavailable(f"Telegram's gateway answered HTTP {status}")
    return Silence(phase=Phase.ANSWER_AWAITED, error=error, status=status)


def compose(outgoing: Outgoing, *, parse_mode: ParseMode) -> tuple[Call, ...]:
    """The calls in order; raises ValidationError for what Telegram would never take."""
    message_id = outgoing.source_event.get("message_id")
    if outgoing.intent == "react":
        emoji = _SPELLINGS.get((outgoing.emoji or "").strip().replace(_PRESENTATION, ""))
        if emoji is None:
            raise invalid("delivery.emoji", "is not among Telegram's reactions")
        if message_id is None:
            raise invalid("request_context", "names no message to react to")
        chosen = {"message_id": message_id, "reaction": [{"type": "emoji", "emoji": emoji}]}
        return (Call(method="setMessageReaction", body={"chat_id": outgoing.target, **chosen}, movable=False),)
    calls: list[Call] = []
    for part in parts(outgoing.message, parse_mode=parse_mode):
        body: dict[str, Any] = {"chat_id": outgoing.target, "text": part.plain if part.html is None else part.html}
        if outgoing.intent == "reply" and message_id is not None and not calls:
            # The answer matters more than the thread: a deleted question must not stop it.
            body["reply_parameters"] = {"message_id": message_id, "allow_sending_without_reply": True}
        if part.html is None:
            calls.append(Call(method="sendMessage", body=body))
        else:
            calls.append(Call(method="sendMessage", body=body | {"parse_mode": "HTML"}, plain_text=part.plain))
    if not calls:
        raise invalid("delivery.message", "has nothing to show")
    return tuple(calls)


def read(response: httpx2.Response) -> Answer | None:
    """The answer; None when these are not Telegram's words."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or "ok" not in body:
        return None
    result, parameters = (
        value if isinstance(value, dict) else {} for value in (body.get("result"), body.get("parameters"))
    )
    given, wait, moved_to = body.get("description"), parameters.get("retry_after"), parameters.get("migrate_to_chat_id")
    cleaned = text(given) if isinstance(given, str) else ""
    description = _TOKEN.sub("[token]", _QUOTED.sub('"..."', cleaned))[:200]
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < _LONGEST_WAIT:
        wait = None
    ok, code, message_id = bool(body["ok"]), body.get("error_code"), result.get("message_id")
    code = code if type(code) is int else response.status_code
    return Answer(
        ok=ok,
        message_id=message_id if type(message_id) is int else None,
        code=code,
        description=description,
        retry_after=None if wait is None else float(wait),
        moved_to=str(moved_to) if type(moved_to) is int and not ok else None,
        cannot_parse=code == 400 and _CANNOT_PARSE in description.lower(),
    )


def refused(answer: Answer, *, evidence: Mapping[str, Any], moved_to: str | None = None) -> NotSent:
    """A refusal is certain: nothing of this call was sent."""
    wait = answer.wait
    return NotSent(
        error=_error(answer),
        answered=True,
        response={**evidence, **answer.refusal_evidence()},
        throttle=None if wait is None else Throttle(scope="target", seconds=wait),
        recipient_gone=answer.code == 403,
        moved_to=answer.moved_to or moved_to,
    )


def _error(answer: Answer) -> ClassifiedError:
    code, description = answer.code, answer.description
    match code:
        case 429:
            return TargetUnavailable(f"Telegram asks to wait: {description}", retry_after=answer.wait)
        case 403:
            return TargetUnavailable(f"the recipient cannot be reached: {description}", retryable=False)
        case 401 | 404:
            return TargetUnavailable(f"Telegram refuses the bot's token: {description}", retryable=False)
        case int() if code >= 500:
            return TargetUnavailable(f"Telegram failed: {description}")
    return ValidationError(f"Telegram refused the message: {description}")


def refusal(code: object, *, retry_after: float | None = None) -> ClassifiedError:
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
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None
