"""Telegram updates by long polling.

The offset is Telegram's own checkpoint: asking for `offset = last + 1` confirms everything before it. It is moved only
after the ingest door has said that an update is durable, so a crash makes Telegram send it again and the door
recognises it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import httpx2

from butlers.channels.connector import Counters, IngestPort, Standing, state_after
from butlers.channels.plugins import ChannelSettings
from butlers.channels.telegram.adapter import refusal, unreachable
from butlers.clock import Clock
from butlers.contracts.envelope import storable
from butlers.contracts.heartbeat import ConnectorCapabilities, ConnectorCheckpoint
from butlers.contracts.ingest import Control, Event, IngestEnvelope, Payload, Sender, Source
from butlers.errors import (
    ClassifiedError,
    InternalError,
    OverloadRejected,
    SenderRefused,
    TargetUnavailable,
    TimeoutExceeded,
    ValidationError,
)
from butlers.http_client import BoundedAsyncClient, authorities
from butlers.reliability.retry import RetryAfter, RetryPolicy, next_retry
from butlers.serving.server import is_loopback
from butlers.telemetry import get_logger

log = get_logger("butlers.channels.telegram.connector")

POLL_S = 25  # how long Telegram holds an empty poll
_PATIENCE = RetryPolicy(max_attempts=1_000_000, initial_delay=0.5, max_delay=30.0)
MOST_ATTEMPTS = 5  # at one update that the ingest door cannot take although nothing is away
_ALLOWED = ("message", "edited_message")


def to_envelope(update: Mapping[str, Any], *, bot: str, observed_at: datetime) -> IngestEnvelope | None:
    """An update as ingest.v1, or None for what carries no text. What cannot be stored is replaced, not refused."""
    update = storable(update)
    message = update.get("message") or update.get("edited_message")
    if not isinstance(message, Mapping):
        return None
    text = message.get("text") or message.get("caption")
    if not isinstance(text, str) or not text.strip():
        return None
    sender = message.get("from") or message["chat"]
    names = [sender.get(key) for key in ("first_name", "last_name")]
    name = " ".join(part for part in names if part) or sender.get("username") or sender.get("title")
    return IngestEnvelope(
        schema_version="ingest.v1",
        source=Source(channel="telegram", provider="telegram", endpoint_identity=bot),
        event=Event(
            external_event_id=str(update["update_id"]),
            external_thread_id=str(message["chat"]["id"]),
            observed_at=observed_at,
        ),
        sender=Sender(identity=str(sender["id"]), display_name=str(name) if name else None),
        payload=Payload(raw=dict(update) | {"message": message}, normalized_text=text),
        control=Control(policy_tier="interactive"),
    )


def make_connector(settings: ChannelSettings, ingest: IngestPort) -> TelegramConnector:
    return TelegramConnector(
        token=settings.secrets["token"],
        base_url=settings.options["telegram_api_url"],
        ingest=ingest,
        clock=settings.clock,
        poll_s=settings.options["telegram_poll_s"],
    )


class TelegramConnector:
    connector_type = "telegram"
    capabilities = ConnectorCapabilities(backfill=False)  # bots cannot read what was written before

    def __init__(self, *, token: str, base_url: str, ingest: IngestPort, clock: Clock, poll_s: int = POLL_S) -> None:
        trusting = not is_loopback(base_url)
        self._client = BoundedAsyncClient(
            base_url=f"{base_url.rstrip('/')}/bot{token}/",
            timeout=poll_s + 10,
            verify=authorities(trust_env=trusting),
            trust_env=trusting,
        )
        self._ingest = ingest
        self._clock = clock
        self._poll_s = poll_s
        self._offset = 0
        self._bot = ""
        self._known = asyncio.Event()
        self._failures: int = 0  # in a row
        self._attempts: int = 0  # at the update that is next
        self._problem: ClassifiedError | None = None
        self._checkpoint: ConnectorCheckpoint | None = None
        self.counters = Counters()

    async def run(self) -> None:
        """Poll until cancelled; failures are waited out."""
        while True:
            try:
                await self.poll_once()
                if self._failures:
                    log.info("polling works again", attempts=self._failures)
                self._failures, self._problem = 0, None
            except ClassifiedError as error:
                self._failures, self._problem = self._failures + 1, error
                log.warning("polling failed", error=error, error_class=error.error_class, attempt=self._failures)
                decision = next_retry(
                    _PATIENCE, attempt=self._failures, retryable=True, retry_after=error.retry_after, random=0.5
                )
                await self._clock.sleep(decision.delay if isinstance(decision, RetryAfter) else 30.0)

    async def endpoint(self) -> str:
        """The bot's name, as soon as Telegram has told it."""
        await self._known.wait()
        return self._bot

    def standing(self) -> Standing:
        problem = self._problem
        return Standing(
            state=state_after(self._failures, final=problem is not None and not problem.retryable),
            error_message=f"{problem.error_class.value}: {problem.message}"[:2_000] if problem else None,
            remedy=problem.remedy if problem else "",
            checkpoint=self._checkpoint,
        )

    async def poll_once(self) -> int:
        """One poll; returns how many updates were handed in and confirmed."""
        if not self._bot:
            self._bot = _username(await self._call("getMe", {}))
            self._known.set()
        body = {"offset": self._offset, "timeout": self._poll_s, "allowed_updates": list(_ALLOWED)}
        updates = await self._call("getUpdates", body)
        if not isinstance(updates, list):
            raise TargetUnavailable("Telegram's answer holds no list of updates")
        for update in updates:
            await self._hand_in(update)
            self._attempts = 0
            # What has no number cannot be confirmed; the next one that has confirms it, too.
            number = update.get("update_id") if isinstance(update, Mapping) else None
            if isinstance(number, int):
                self._offset = number + 1
                self._checkpoint = ConnectorCheckpoint(cursor=str(self._offset), updated_at=self._clock.now())
                self.counters.checkpoint_saves += 1
        return len(updates)

    async def _hand_in(self, update: Mapping[str, Any]) -> None:
        try:
            envelope = to_envelope(update, bot=self._bot, observed_at=self._clock.now())
            if envelope is None:
                return
            reply = await self._ingest.ingest(envelope)
        except SenderRefused:
            return  # counted and listed at the door; there is nothing to come back to
        except (ValidationError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            # Not our format, and it never will be: polling it again would block everything behind it.
            self.counters.messages_failed += 1
            log.error("update cannot be read", error=error)
            return
        except (TargetUnavailable, TimeoutExceeded, OverloadRejected):
            raise  # something is away or full: this says nothing about the update
        except Exception as error:
            self._attempts += 1
            if self._attempts < MOST_ATTEMPTS:
                raise InternalError(f"an update could not be handed in ({type(error).__name__})") from error
            self.counters.messages_failed += 1
            log.error(
                "update given up", error=error, attempts=self._attempts, external_event_id=update.get("update_id")
            )
            return
        self.counters.messages_ingested += 1
        self.counters.dedupe_accepted += not reply.duplicate

    async def _call(self, method: str, body: Mapping[str, Any]) -> Any:
        self.counters.source_api_calls += 1
        try:
            response = await self._client.post(method, json=body)
            answer = response.json()
        except (httpx2.HTTPError, ValueError, RecursionError) as error:
            raise unreachable(error) from error
        if not isinstance(answer, Mapping):
            raise TargetUnavailable("Telegram's answer is not an object")
        if answer.get("ok") is not True or "result" not in answer:
            raise refusal(answer.get("error_code"), retry_after=_retry_after(answer))
        return answer["result"]

    async def close(self) -> None:
        await self._client.aclose()


def _username(me: Any) -> str:
    name = me.get("username") if isinstance(me, Mapping) else None
    if not isinstance(name, str):
        raise TargetUnavailable("Telegram did not say who the bot is")
    return name


def _retry_after(answer: Mapping[str, Any]) -> float | None:
    parameters = answer.get("parameters")
    seconds = parameters.get("retry_after") if isinstance(parameters, Mapping) else None
    return float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 86_400 else None
