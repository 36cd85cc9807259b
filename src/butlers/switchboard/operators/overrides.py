"""Operators' actions on requests (seed 003, "Human Override and Operator Controls").

    lock the row -> may this be done now? -> change it, tell its record, audit it: one transaction
                 -> stop the work that is under way, put the request back into the queue

Who acts is who the transport says it is. A refused action is audited, too, and so is one that failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from butlers.channels.registry import followed_names
from butlers.clock import Clock
from butlers.errors import ClassifiedError, Conflict, FieldError, NotFound, RoutingError
from butlers.operations.requests import Action
from butlers.reliability.dead_letter import ReplayPolicy
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries
from butlers.switchboard.ingress.ingress import MessageRef
from butlers.switchboard.operators.audit import ActionOutcome, AuditLog, OperatorAudit, Wish
from butlers.switchboard.operators.dead_letters import DeadLetters
from butlers.switchboard.operators.decisions import (
    Beginning,
    handed_to,
    refusal,
    repeated,
    replay_refusal,
    rerouted,
    round_after,
)
from butlers.switchboard.registry import NOT_ROUTABLE, Registry
from butlers.telemetry import get_logger

log = get_logger("butlers.operators")

OnEnd = Callable[[UUID, str], Awaitable[None]]


class Rejected(Conflict):
    """Not possible in the state that the request is in; nothing was changed."""

    def __init__(self, field: str, problem: str, *, state: str | None = None) -> None:
        super().__init__(f"{field}: {problem}", fields=(FieldError(field=field, error=problem),))
        self.state = state

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"outcome": "rejected", "lifecycle_state": self.state}


class RejectedAsUnknown(Rejected):
    """What the operator names is not there."""

    wire_kind = NotFound.wire_kind
    http_status = NotFound.http_status


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an action did to a request."""

    ref: MessageRef
    state: str
    details: Mapping[str, Any] = field(default_factory=dict)
    partial: bool = False  # somebody has it already and cannot be stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    database: Database
    queries: Queries  # of this package
    registry: Registry
    dead_letters: DeadLetters
    audit: OperatorAudit
    log: AuditLog
    clock: Clock
    offer: Callable[[MessageRef], object]  # into the buffer
    stop_now: Callable[[UUID], None]  # whoever works on it here
    on_end: OnEnd | None = None  # its author, and whoever waits behind it
    policy: ReplayPolicy = field(default_factory=ReplayPolicy)

    # --- the actions -------------------------------------------------------------------------------------------------

    async def reroute(self, request_id: UUID, *, target: str, operator: str, reason: str) -> dict[str, Any]:
        wish = self._wish(Action.MANUAL_REROUTE, request_id, operator, reason, target=target)

        async def change(connection: Executor) -> Change:
            row = await self._locked(connection, request_id, wish.action)
            turn = round_after(row["override"])
            why = f"operator {operator}: {reason}"
            beginning = rerouted(row["normalized_text"], target, why=why, turn=turn)
            override = wish.override(target=target, round=turn, before=_before(row))
            await self._reopen(connection, row, beginning, override, pinned_target=target)
            return _reopened(row, target=target)

        return await self._act(wish, change, first=self._check_target(target))

    async def cancel(self, request_id: UUID, *, operator: str, reason: str) -> dict[str, Any]:
        return await self._stop(request_id, self._wish(Action.CANCEL, request_id, operator, reason))

    async def abort(self, request_id: UUID, *, operator: str, reason: str) -> dict[str, Any]:
        return await self._stop(request_id, self._wish(Action.ABORT, request_id, operator, reason))

    async def force_complete(self, request_id: UUID, *, annotation: str, operator: str, reason: str) -> dict[str, Any]:
        wish = self._wish(Action.FORCE_COMPLETE, request_id, operator, reason, annotation=annotation)

        async def change(connection: Executor) -> Change:
            row = await self._locked(connection, request_id, wish.action)
            override = wish.override(annotation=annotation, before=_before(row))
            await self._end(connection, row, "parsed", None, override)
            await self.dead_letters.resolve(connection, request_id)
            return _ended(row, "parsed", annotation=annotation)

        return await self._act(wish, change)

    async def retry(self, request_id: UUID, *, operator: str, reason: str) -> dict[str, Any]:
        wish = self._wish(Action.RETRY, request_id, operator, reason)

        async def change(connection: Executor) -> Change:
            row = await self._locked(connection, request_id, wish.action)
            turn = round_after(row["override"])
            beginning = repeated(row["routing_output"], row["dispatch_outcomes"], turn)
            override = wish.override(round=turn, before=_before(row))
            await self._reopen(connection, row, beginning, override, pinned_target=row["pinned_target"])
            return _reopened(row)

        return await self._act(wish, change)

    async def replay(self, dead_letter_id: UUID, *, operator: str, reason: str) -> dict[str, Any]:
        wish = self._wish(Action.REPLAY, None, operator, reason, dead_letter_id=str(dead_letter_id))
        known = await self.dead_letters.get(dead_letter_id)
        if known is None:
            return await self._act(wish, _no_such_letter)
        request_id: UUID = known["request_id"]

        async def change(connection: Executor) -> Change:
            # A request whose month is gone has no row to lock; of two replays of its letters, one is to restore it.
            await connection.execute(self.queries.lock_name, str(request_id))
            # The request before its letter, as whoever finishes a request locks them.
            row = await connection.fetchrow(self.queries.lock_request, request_id)
            letter = await self._locked_letter(connection, dead_letter_id)
            if row is not None and (problem := refusal(wish.action, row["lifecycle_state"])):
                raise Rejected("dead_letter_id", problem, state=row["lifecycle_state"])
            return await self._replay(connection, wish, letter, row)

        return await self._act(wish, change, request_id=request_id)

    # --- how they are done -------------------------------------------------------------------------------------------

    async def _act(
        self,
        wish: Wish,
        change: Callable[[Executor], Awaitable[Change]],
        *,
        request_id: UUID | None = None,
        first: Awaitable[None] | None = None,
    ) -> dict[str, Any]:
        about = request_id or wish.request_id
        try:
            if first is not None:
                await first
            async with self.database.transaction() as connection:
                done = await change(connection)
                outcome: ActionOutcome = "partial" if done.partial else "success"
                audit_id = await self.audit.record(wish, outcome, done.details, request_id=about, connection=connection)
        except Exception as error:
            await self._tell_failure(wish, about, error)
            raise
        self._tell(wish, about, outcome)
        await self._follow(done)
        return {
            "outcome": outcome,
            "action": wish.action.value,
            "request_id": done.ref.request_id,
            "lifecycle_state": done.state,
            "operator": wish.operator,
            "reason": wish.reason,
            "performed_at": wish.at,
            "audit_id": audit_id,
            "details": dict(done.details),
        }

    async def _follow(self, done: Change) -> None:
        """The row is changed: nobody may go on with what it was."""
        self.stop_now(done.ref.request_id)
        if done.state == "accepted":
            self.offer(done.ref)
        elif self.on_end is not None:
            await self.on_end(done.ref.request_id, done.state)

    async def _tell_failure(self, wish: Wish, request_id: UUID | None, error: Exception) -> None:
        outcome: ActionOutcome = "rejected" if isinstance(error, Rejected) else "failed"
        problem = error.message if isinstance(error, ClassifiedError) else type(error).__name__
        self._tell(wish, request_id, outcome, problem)
        try:
            await self.audit.record(wish, outcome, {"problem": problem}, request_id=request_id)
        except Exception as unrecorded:
            # The operator hears of the failure itself; that it is not on record is for the log.
            log.error("operator action not recorded", error=unrecorded, request_id=request_id)

    def _tell(self, wish: Wish, request_id: UUID | None, outcome: ActionOutcome, problem: str | None = None) -> None:
        log.info("operator action", request_id=request_id, caller=wish.operator, outcome=outcome, reason=wish.action)
        self.log.write(
            butler="switchboard",
            operation=f"request.{wish.action.value}",
            request_summary={"request_id": str(request_id) if request_id else None},
            result=outcome,
            error=problem,
            actor=wish.operator,
        )

    async def _stop(self, request_id: UUID, wish: Wish) -> dict[str, Any]:
        async def change(connection: Executor) -> Change:
            row = await self._locked(connection, request_id, wish.action)
            error = RoutingError(f"cancelled by {wish.operator}: {wish.reason}").describe()
            await self._end(connection, row, "errored", error, wish.override(before=_before(row)))
            await self.dead_letters.stop_replays(connection, request_id)
            return _ended(row, "errored")

        return await self._act(wish, change)

    async def _replay(self, connection: Executor, wish: Wish, letter: Record, row: Record | None) -> Change:
        copy = letter["original_payload"]
        stored = row if row is not None else copy
        turn = round_after(row["override"] if row is not None else {"round": letter["replay_count"]})
        beginning = repeated(stored["routing_output"], stored["dispatch_outcomes"], turn)
        override = wish.override(round=turn, dead_letter_id=str(letter["id"]))
        if row is not None:
            await self._reopen(connection, row, beginning, override, pinned_target=row["pinned_target"])
            ref = _reference(row)
        else:
            ref = await self._restore(connection, letter, beginning, override)
        count = await connection.fetchval(self.queries.mark_replay, letter["id"], wish.at)
        details = {"dead_letter_id": str(letter["id"]), "replay_count": count, "restored": row is None}
        return Change(ref=ref, state="accepted", details=details)

    async def _restore(
        self, connection: Executor, letter: Record, beginning: Beginning, override: Mapping[str, Any]
    ) -> MessageRef:
        """The request again, from the copy: the month in which it came is gone."""
        copy, context, now = letter["original_payload"], letter["request_context"], self.clock.now()
        await connection.execute(
            self.queries.restore_request,
            letter["request_id"],
            now,
            context,
            copy,
            beginning.routing_output,
            beginning.outcomes,
            override,
        )
        return MessageRef(
            request_id=letter["request_id"],
            received_at=now,
            policy_tier=copy["policy_tier"],
            source_channel=context["source_channel"],
        )

    async def _locked(self, connection: Executor, request_id: UUID, action: Action) -> Record:
        row = await connection.fetchrow(self.queries.lock_request, request_id)
        if row is None:
            raise RejectedAsUnknown("request_id", "no such request")
        if problem := refusal(action, row["lifecycle_state"]):
            raise Rejected("request_id", problem, state=row["lifecycle_state"])
        return row

    async def _locked_letter(self, connection: Executor, dead_letter_id: UUID) -> Record:
        letter = await connection.fetchrow(self.queries.lock_letter, dead_letter_id)
        if letter is None:
            raise RejectedAsUnknown("dead_letter_id", "no such dead letter")
        if problem := replay_refusal(dict(letter), self.policy, self.clock.now()):
            raise Rejected("dead_letter_id", problem)
        return letter

    async def _check_target(self, target: str) -> None:
        butlers = {butler.name: butler for butler in await self.registry.butlers()}
        if target not in butlers:
            there = ", ".join(sorted(butlers.keys() - NOT_ROUTABLE))
            raise Rejected("target", f"is no butler here; there are {there}")
        if not butlers[target].takes_routes:
            raise Rejected("target", "takes no requests" + ("" if target in NOT_ROUTABLE else " now"))

    async def _end(
        self,
        connection: Executor,
        row: Record,
        state: str,
        error: Mapping[str, Any] | None,
        override: Mapping[str, Any],
    ) -> None:
        await connection.execute(
            self.queries.end_request,
            row["request_id"],
            row["received_at"],
            state,
            error,
            override,
            self.clock.now(),
            followed_names(),
        )

    async def _reopen(
        self,
        connection: Executor,
        row: Record,
        beginning: Beginning,
        override: Mapping[str, Any],
        *,
        pinned_target: str | None,
    ) -> None:
        await connection.execute(
            self.queries.reopen_request,
            row["request_id"],
            row["received_at"],
            pinned_target,
            beginning.routing_output,
            beginning.outcomes,
            override,
            self.clock.now(),
        )

    def _wish(self, action: Action, request_id: UUID | None, operator: str, reason: str, **payload: Any) -> Wish:
        at = self.clock.now()
        return Wish(action=action, operator=operator, reason=reason, at=at, request_id=request_id, payload=payload)


async def _no_such_letter(_connection: Executor) -> Change:
    raise RejectedAsUnknown("dead_letter_id", "no such dead letter")


def _reference(row: Record) -> MessageRef:
    return MessageRef(
        request_id=row["request_id"],
        received_at=row["received_at"],
        policy_tier=row["policy_tier"],
        source_channel=row["source_channel"],
    )


def _before(row: Record) -> dict[str, Any]:
    """How the request stood, for its record."""
    return {"state": row["lifecycle_state"], "error": row["lifecycle_error"]}


def _reopened(row: Record, **details: Any) -> Change:
    return _change(row, "accepted", details)


def _ended(row: Record, state: str, **details: Any) -> Change:
    return _change(row, state, details)


def _change(row: Record, state: str, details: Mapping[str, Any]) -> Change:
    """Whoever has got the message by now goes on with it; only the request is stopped."""
    goes_on = handed_to(row["routing_output"]) if row["lifecycle_state"] == "progress" else []
    told = dict(details) | {"was": row["lifecycle_state"]}
    told |= {"handed_to": goes_on, "note": "a butler that has its part already finishes it"} if goes_on else {}
    return Change(ref=_reference(row), state=state, details=told, partial=bool(goes_on))
