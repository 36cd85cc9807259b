"""Deliveries that were set aside: which, why, and whether they may be sent again (seed 001 section 5.1.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.clock import Clock
from butlers.contracts.delivery_state import QUARANTINABLE
from butlers.contracts.envelope import invalid
from butlers.errors import NotFound
from butlers.messenger.preflight import Preflight
from butlers.messenger.release import Release, assess
from butlers.messenger.tools.deliveries import DeliveryRecords, decided_by
from butlers.operations import dead_letters as operations
from butlers.operations.dead_letters import (
    REPLAY,
    DeadLetterArguments,
    DiscardArguments,
    ListArguments,
    ReplayArguments,
)
from butlers.operations.deliveries import (
    DRY_RUN,
    QUARANTINE,
    SETTLE,
    VALIDATE,
    NotifyArguments,
    QuarantineArguments,
    SettleArguments,
)
from butlers.operations.operation import page, place
from butlers.reliability.dead_letter import ReplayPolicy
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger.dead_letters")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterTools:
    records: DeliveryRecords
    clock: Clock
    new_id: Callable[[], UUID]
    wake: Callable[[], None]  # a delivery that stood in front of others is gone
    policy: ReplayPolicy = field(default_factory=ReplayPolicy)

    def tools(self) -> list[Tool]:
        return [
            Tool.of(operations.LIST, self._list),
            Tool.of(operations.INSPECT, self._inspect),
            Tool.of(operations.DISCARD, self._discard),
            Tool.of(QUARANTINE, self._quarantine),
        ]

    async def _list(self, _caller: Caller, arguments: ListArguments) -> dict[str, Any]:
        rows = await self.records.rows(
            self.records.queries.dead_letters,
            arguments.channel,
            arguments.origin_butler,
            arguments.error_class,
            arguments.since,
            arguments.include_discarded,
            *place(arguments.cursor),
            arguments.limit + 1,
        )
        letters, cursor = page(rows, arguments.limit)
        eligibility = await self.eligibility(letters)
        shown = [letter | {"replay_eligible": eligibility[letter["id"]]["eligible"]} for letter in letters]
        return wire({"dead_letters": shown, "next_cursor": cursor})

    async def _inspect(self, _caller: Caller, arguments: DeadLetterArguments) -> dict[str, Any]:
        letter = await self._letter(arguments.dead_letter_id)
        eligibility = (await self.eligibility([letter]))[letter["id"]]
        attempts = (await self.records.attempts(letter["delivery_id"]))[letter["delivery_id"]]
        replays = await self.records.rows(self.records.queries.replays_of_delivery, letter["delivery_id"])
        return wire(
            {
                "dead_letter_id": letter["id"],
                **letter,
                "replay_eligible": eligibility["eligible"],
                "replay_eligibility": eligibility,
                "attempts": attempts,
                "replays": replays,
            }
        )

    async def _discard(self, caller: Caller, arguments: DiscardArguments) -> dict[str, Any]:
        person, now, queries = decided_by(caller, arguments), self.clock.now(), self.records.queries
        async with self.records.database.transaction() as connection:
            delivery_id = await connection.fetchval(
                queries.discard, arguments.dead_letter_id, now, arguments.reason, person
            )
            if delivery_id is not None:
                detail = f"given up by {person}: {arguments.reason}"
                await self.records.add_decision(
                    connection, delivery_id, at=now, rule="discard", outcome="discarded", detail=detail
                )
        if delivery_id is None:
            await self._letter(arguments.dead_letter_id)
            raise invalid("dead_letter_id", "is discarded already")
        log.info("dead letter discarded", delivery_id=delivery_id, caller=person)
        return wire(
            {
                "dead_letter_id": arguments.dead_letter_id,
                "delivery_id": delivery_id,
                "status": "discarded",
                "discarded_at": now,
                "discarded_by": person,
                "reason": arguments.reason,
            }
        )

    async def _quarantine(self, caller: Caller, arguments: QuarantineArguments) -> dict[str, Any]:
        person, now, queries = decided_by(caller, arguments), self.clock.now(), self.records.queries
        summary = f"quarantined by {person}: {arguments.reason}"
        async with self.records.database.transaction() as connection:
            status = await connection.fetchval(queries.lock_delivery, arguments.delivery_id)
            _check_quarantinable(status)
            letter_id = await connection.fetchval(
                queries.quarantine, arguments.delivery_id, self.new_id(), summary, now
            )
            await connection.execute(queries.mark_dead_lettered, arguments.delivery_id, now, summary)
            await self.records.add_decision(
                connection, arguments.delivery_id, at=now, rule="quarantine", outcome="dead_lettered", detail=summary
            )
        self.wake()
        log.info("delivery quarantined", delivery_id=arguments.delivery_id, caller=person)
        return wire(
            {
                "dead_letter_id": letter_id,
                "delivery_id": arguments.delivery_id,
                "status": "dead_lettered",
                "was": status,
                "quarantine_reason": "manually_quarantined",
                "reason": arguments.reason,
            }
        )

    async def eligibility(self, letters: Sequence[Mapping[str, Any]]) -> dict[UUID, dict[str, Any]]:
        """By dead letter: may it be sent again, and if not, why."""
        now, deliveries = self.clock.now(), [letter["delivery_id"] for letter in letters]
        rows = await self.records.rows(self.records.queries.standing_of_deliveries, deliveries)
        standings = {row["delivery_id"]: row for row in rows}
        return {letter["id"]: assess(letter, standings[letter["delivery_id"]], self.policy, now) for letter in letters}

    async def _letter(self, dead_letter_id: UUID) -> dict[str, Any]:
        row = await self.records.row(self.records.queries.dead_letter, dead_letter_id)
        if row is None:
            raise NotFound.of("dead_letter_id", "no such dead letter")
        return row


def _check_quarantinable(status: str | None) -> None:
    if status is None:
        raise NotFound.of("delivery_id", "no such delivery")
    if status == "in_progress":
        raise invalid("delivery_id", "is in a provider call; wait for its outcome")
    if status not in QUARANTINABLE:
        raise invalid("delivery_id", f"is {status}; only {', '.join(sorted(QUARANTINABLE))} can be set aside")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTools:
    release: Release
    preflight: Preflight

    def tools(self) -> list[Tool]:
        return [
            Tool.of(REPLAY, self._replay),
            Tool.of(SETTLE, self._settle),
            Tool.of(VALIDATE, self._validate),
            Tool.of(DRY_RUN, self._dry_run),
        ]

    async def _replay(self, caller: Caller, arguments: ReplayArguments) -> dict[str, Any]:
        return wire(await self.release.replay(arguments.dead_letter_id, by=decided_by(caller, arguments)))

    async def _settle(self, caller: Caller, arguments: SettleArguments) -> dict[str, Any]:
        by = decided_by(caller, arguments)
        return wire(await self.release.settle(arguments.delivery_id, arguments.outcome, by=by))

    async def _validate(self, caller: Caller, arguments: NotifyArguments) -> dict[str, Any]:
        return wire(await self.preflight.validate(caller, arguments.notify_request))

    async def _dry_run(self, caller: Caller, arguments: NotifyArguments) -> dict[str, Any]:
        return wire(await self.preflight.dry_run(caller, arguments.notify_request))
