"""Telegram Bot API.

A message is a saga of parts. A part is sent only when all parts before it are on record as sent, so an attempt after a
failure goes on behind them; only the first part quotes the message that is answered.

    part 1 -> on record -> part 2 -> on record -> ... -> part N -> Sent
                             |
                             +-- refused, unanswered: NotSent, about this part and what follows it

Within an attempt a part is sent another way, each at most once: as plain text when Telegram cannot read the markup, and
to the new chat when a group has become a supergroup (which is also where the later parts go).

`sendMessage` has no idempotency key, so certainty comes from how far a request got (`bot_api.Line`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx2

from butlers.channels.adapter import AttemptResult, NotSent, Outgoing, Sent, Wire
from butlers.channels.plugins import ChannelSettings
from butlers.channels.telegram.bot_api import Answer, Call, Line, Phase, Silence, compose, refusal, refused, unreachable
from butlers.channels.telegram.text import ParseMode
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


@dataclass(slots=True, kw_only=True)
class _Saga:
    """The parts of one message, as far as they get in one attempt."""

    outgoing: Outgoing
    calls: tuple[Call, ...]
    line: Line
    wire: Wire
    moved_to: str | None = None  # the chat that took the place of the recipient's

    async def run(self) -> AttemptResult:
        done, last = self.outgoing.parts_sent, len(self.calls)
        for part in range(1, last):
            if part in done:
                continue
            result = await self._send(part)
            if isinstance(result, NotSent):
                return result
            # However long that takes: what came through and is not on record would be sent twice.
            await self.wire.part_sent(part, result.provider_delivery_id)
        if last not in done:
            return await self._send(last)
        evidence = {"phase": "on_record", "part": last, "parts": last}
        return Sent(provider_delivery_id=done[last], part=last, response=evidence, moved_to=self.moved_to)

    async def _send(self, part: int) -> AttemptResult:
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
                return self._result(answer, part, {"plain": True} if plain else {})

    def _result(self, answer: Answer | Silence, part: int, how: dict[str, Any]) -> AttemptResult:
        phase = answer.phase if isinstance(answer, Silence) else Phase.ANSWERED
        evidence = {"phase": phase.value, "part": part, "parts": len(self.calls), **how}
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
        name = str(answer.message_id or "ok")
        return Sent(provider_delivery_id=name, part=part, response=evidence | answer.evidence(), moved_to=self.moved_to)
