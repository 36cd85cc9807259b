"""Telegram Bot API.

A message is a saga of parts. A part is sent only when all parts before it are on record as sent, so an attempt after a
failure goes on behind them; only the first part quotes the message that is answered.

    part 1 -> on record -> part 2 -> on record -> ... -> part N -> Sent
                             |
                             +-- refused, unanswered: NotSent, about this part and what follows it

Within an attempt a part is said another way, each at most once: as plain text when Telegram cannot read the markup, and
to the new chat when a group has become a supergroup (which is also where the later parts go).

`sendMessage` has no idempotency key, so certainty comes from how far a request got (`telegram_line`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from butlers.channels.adapter import AttemptResult, NotSent, Outgoing, Sent, Wire
from butlers.channels.plugins import ChannelSettings
from butlers.channels.telegram.bot_api import Answer, Call, Line, Phase, Silence, compose, refusal, refused, unreachable
from butlers.channels.telegram.splitting import ParseMode
from butlers.errors import ValidationError
from butlers.http_client import BoundedAsyncClient, authorities
from butlers.serving.server import is_loopback

DEFAULT_BASE_URL = "https://api.telegram.org"


def make_adapter(settings: ChannelSettings) -> TelegramChannel:
    """The factory that the channel's value names."""
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
        line = Line(client=self._client, wire=wire, timeout_s=timeout_s)
        return await _Saga(outgoing=outgoing, calls=calls, line=line, wire=wire).run()

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
        """Ask Telegram who the bot is."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = (await self._client.post("getMe", json={})).json()
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise unreachable(error, host=self._client.base_url.host) from error
        if not isinstance(answer, dict) or answer.get("ok") is not True:
            raise refusal(answer.get("error_code") if isinstance(answer, dict) else "nonsense")

    async def close(self) -> None:
        await self._client.aclose()


class _Saga:
    """The parts of one message, as far as they get in one attempt."""

    def __init__(self, *, outgoing: Outgoing, calls: tuple[Call, ...], line: Line, wire: Wire) -> None:
        self._done = outgoing.parts_sent
        self._calls = calls
        self._line = line
        self._wire = wire
        self._moved_to: str | None = None

    async def run(self) -> AttemptResult:
        last = len(self._calls)
        for part in range(1, last):
            if part in self._done:
                continue
            result = await self._say(part)
            if isinstance(result, NotSent):
                return result
            # However long that takes: what came through and is not on record would be said twice.
            await self._wire.part_sent(part, result.provider_delivery_id)
        return self._resumed(last) if last in self._done else await self._say(last)

    def _resumed(self, part: int) -> Sent:
        evidence = {"phase": "on_record", "part": part, "parts": len(self._calls)}
        return Sent(provider_delivery_id=self._done[part], part=part, response=evidence, moved_to=self._moved_to)

    async def _say(self, part: int) -> AttemptResult:
        call, plain = self._calls[part - 1], False
        if self._moved_to is not None:
            call = call.to_chat(self._moved_to)
        while True:
            answer = await self._line.ask(call, part=part)
            if isinstance(answer, Silence):
                return self._unanswered(answer, part, plain)
            if answer.cannot_parse and call.plain_text is not None:
                call, plain = call.as_plain(), True
            elif answer.moved_to and call.movable and self._moved_to is None:
                self._moved_to = answer.moved_to
                call = call.to_chat(answer.moved_to)
            else:
                return self._answered(answer, part, plain)

    def _unanswered(self, silence: Silence, part: int, plain: bool) -> NotSent:
        return NotSent(
            error=silence.error,
            certainty=silence.certainty,
            response=self._evidence(silence.phase, part, plain) | silence.evidence(),
            moved_to=self._moved_to,
            asked=silence.phase is not Phase.NOT_BEGUN,
        )

    def _answered(self, answer: Answer, part: int, plain: bool) -> AttemptResult:
        evidence = self._evidence(Phase.ANSWERED, part, plain)
        if not answer.ok:
            return refused(answer, evidence=evidence, moved_to=self._moved_to)
        return Sent(
            provider_delivery_id=str(answer.message_id or "ok"),
            part=part,
            response=evidence | answer.evidence(),
            moved_to=self._moved_to,
        )

    def _evidence(self, phase: Phase, part: int, plain: bool) -> dict[str, Any]:
        told = {"phase": phase.value, "part": part, "parts": len(self._calls)}
        return told | ({"plain": True} if plain else {})
