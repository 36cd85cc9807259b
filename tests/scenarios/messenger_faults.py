"""Messenger's shared state at random: budgets, windows, circuits, recipients."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tests.system import OWNER_CHAT_ID, RunningSystem

LIMITS = {
    "global_per_minute": 6.0,
    "telegram_bot": 5.0,
    "email_bot": 4.0,
    "recipient_per_minute": 3.0,
    "max_in_flight": 3,
}
CHANNELS = {"telegram.bot": 5.0, "email.bot": 4.0}
ORIGINS = ("health", "travel", "finance")
CHATS = ("61", "61", "62", "62", "63", "666", str(OWNER_CHAT_ID))  # 666 is on the deny list
ADDRESSES = ("friend@elsewhere.example", "aunt@elsewhere.example")
KNOWN_KEY = "known"  # each origin has a delivery to KNOWN_CHAT under it
KNOWN_CHAT = "62"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultChanges:
    """Makes one moment of the shared state after another."""

    running: RunningSystem
    dice: random.Random

    async def change(self) -> None:
        await self._clear()
        await self._in_flight()
        if self._chance(0.3):
            await self._rush()
        else:
            await self._buckets()
            await self._shares()
        await self._throttles()
        await self._circuits()
        await self._recipients()

    def _chance(self, share: float) -> bool:
        return self.dice.random() < share

    async def _run(self, query: str, *values: Any) -> None:
        await self.running.database.execute(query, *values)

    async def _clear(self) -> None:
        gone = "select id from messenger.delivery_requests where envelope->>'idempotency_key' is distinct from 'known'"
        await self._run("delete from messenger.rate_buckets where name <> 'lock'")
        for table in ("throttles", "recipient_rules", "admission_outcomes", "pending_actions"):
            await self._run(f"delete from messenger.{table}")
        for table in ("delivery_attempts", "delivery_receipts"):
            await self._run(f"delete from messenger.{table} where delivery_id in ({gone})")
        await self._run(f"delete from messenger.delivery_requests where id in ({gone})")

    async def _in_flight(self) -> None:
        """Deliveries that are taken on and not due."""
        count = self.dice.choice((0, 0, 0, 1, 2, 3))
        columns = "origin_butler, channel, intent, target_identity, message, created_at, updated_at"
        await self._run(
            f"insert into messenger.delivery_requests (id, idempotency_key, ordering_key, envelope, status,"
            f" next_attempt_at, {columns}) select gen_random_uuid(), 'filler-' || n, 'filler-' || n, '{{}}', 'pending',"
            f" '2999-01-01', {columns} from messenger.delivery_requests, generate_series(1, $1) as n"
            " where origin_butler = 'health' and envelope->>'idempotency_key' = 'known'",
            count,
        )

    async def _bucket(self, name: str, capacity: float, *, layer: str | None = None, origin: str | None = None) -> None:
        now = self.running.clock.now()
        capacity *= self.dice.choice((1.0, 1.0, 1.0, 2.0))  # as it was before the limits were changed
        tokens = self.dice.choice((0.0, 0.3, 0.6, 1.0, 2.0, 3.0)) if self._chance(0.5) else capacity
        since = now - timedelta(seconds=self.dice.choice((0, 0, 1, 7)))
        until = now + timedelta(seconds=self.dice.choice((-1, 30, 60)))
        values = (name, layer, origin, capacity, capacity / 60, tokens, since, until)
        await self._run("insert into messenger.rate_buckets values ($1, $2, $3, $4, $5, $6, $7, $8)", *values)

    async def _rush(self) -> None:
        """One butler has had nearly everything, and another one waits for its share."""
        noisy, quiet = self.dice.sample(ORIGINS, 2)
        now, size = self.running.clock.now(), LIMITS["global_per_minute"]
        for name, layer, origin, tokens in (
            ("global", None, None, 2.0),
            (f"share:global/{noisy}", "global", noisy, 0.0),
            (f"share:global/{quiet}", "global", quiet, size),
        ):
            values = (name, layer, origin, size, size / 60, tokens, now, now + timedelta(seconds=60))
            await self._run("insert into messenger.rate_buckets values ($1, $2, $3, $4, $5, $6, $7, $8)", *values)

    async def _buckets(self) -> None:
        sizes = {"global": LIMITS["global_per_minute"]} | {f"channel:{name}": size for name, size in CHANNELS.items()}
        sizes |= {f"recipient:telegram.bot:{chat}": 3.0 for chat in sorted(set(CHATS))}
        sizes |= {f"recipient:email.bot:{address}": 3.0 for address in ADDRESSES}
        for name, size in sizes.items():
            if self._chance(0.4):
                await self._bucket(name, size)

    async def _shares(self) -> None:
        for layer, size in {"global": LIMITS["global_per_minute"], "channel:telegram.bot": 5.0}.items():
            for origin in ORIGINS:
                if self._chance(0.5):
                    await self._bucket(f"share:{layer}/{origin}", size, layer=layer, origin=origin)

    async def _throttles(self) -> None:
        now = self.running.clock.now()
        for scope in ("telegram.bot", "telegram.bot:61", "telegram.bot:63", "email.bot"):
            if self._chance(0.1):
                until = now + timedelta(seconds=self.dice.choice((-5.0, 12.5, 60.0)))
                query = "insert into messenger.throttles values ($1, $2, $3, 'busy', $4)"
                await self._run(query, scope, scope.partition(":")[0], until, now)

    async def _circuits(self) -> None:
        now = self.running.clock.now()
        for name in CHANNELS:
            state = self.dice.choice(("closed", "closed", "closed", "closed", "open", "half-open"))
            await self._run(
                "update messenger.channel_states set state = $2, generation = generation + 1,"
                " consecutive_failures = $3, probes_out = $4, probe_successes = 0, trip_reason = 'it failed',"
                " tripped_at = $5, probe_at = $6, stance = $7 where name = $1",
                name,
                state,
                self.dice.randrange(5),
                self.dice.randrange(2) if state == "half-open" else 0,
                now - timedelta(seconds=30),
                now + timedelta(seconds=self.dice.choice((-1.0, 0.0, 20.0, 45.0))),
                self.dice.choice(("normal", "normal", "tight")),
            )

    async def _recipients(self) -> None:
        now = self.running.clock.now()
        for target in ("61", "62", "63"):
            if self._chance(0.2):
                moves = (("moved", "63"), ("moved", "63"), ("moved", "666")) if target != "63" else ()
                rule, moved_to = self.dice.choice((("suppressed", None), *moves))
                since = now + timedelta(seconds=self.dice.choice((-60, 60)))
                query = (
                    "insert into messenger.recipient_rules (channel, target, rule, moved_to, reason, decided_by, since)"
                    " values ('telegram', $1, $2, $3, 'gone', 'provider', $4)"
                )
                await self._run(query, target, rule, moved_to, since)
