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

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.channels.registry import followed_names
from butlers.clock import Clock
from butlers.errors import ClassifiedError, Conflict, FieldError, NotFound, RoutingError
from butlers.operations.operators import (
    Action,
    ActionArguments,
    ForceCompleteArguments,
    ReplayArguments,
    RerouteArguments,
)
from butlers.reliability.dead_letter import ReplayPolicy
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries
from butlers.switchboard.ingress.ingress import MessageRef
from butlers.switchboard.operators.audit import ActionOutcome, AuditLog, OperatorAudit, OperatorIntent
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
    partial: bool = False  # a butler has it already and cannot be stopped


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
    stop_now: Callable[[UUID], None]  # the worker of this process that has it
    on_end: OnEnd | None = None  # tells its author, and the message that waits behind it
    policy: ReplayPolicy = field(default_factory=ReplayPolicy)

    async def reroute(self, caller: Caller, given: RerouteArguments) -> dict[str, Any]:
        intent = self._intent(Action.MANUAL_REROUTE, given.request_id, caller, given.reason, target=given.target)

        async def change(connection: Executor) -> Change:
            row = await self._locked(connection, given.request_id, intent.action)
            turn = round_after(row["override"])
            why = f"operator {intent.operator}: {intent.reason}"
            beginning = rerouted(row["normalized_text"], given.target, why=why, turn=turn)
            override = intent.override(target=given.target, round=turn, before=_before(row))
            await self._reopen(connection, row, beginning, override, pinned_target=given.target)
            return _change(row, "accepted", target=given.target)

        return await self._act(intent, change, first=self._check_target(given.target))

    async def cancel(self, caller: Caller, given: ActionArguments) -> dict[str, Any]:
        return await self._stop(self._intent(Action.CANCEL, given.request_id, caller, given.reason), given.request_id)

    async def abort(self, caller: Caller, given: ActionArguments) -> dict[str, Any]:
        return await self._stop(self._intent(Action.ABORT, given.request_id, caller, given.reason), given.request_id)

    async def force_complete(self, caller: Caller, given: ForceCompleteArguments) -> dict[str, Any]:
        annotation = given.annotation
        intent = self._intent(Action.FORCE_COMPLETE, given.request_id, caller, given.reason, annotation=annotation)

        async def change(connection: Executor) -> Change:
            row = await self._locked(connection, given.request_id, intent.action)
            override = intent.override(annotation=annotation, before=_before(row))
            await self._end(connection, row, "parsed", None, override)
            await self.dead_letters.resolve(connection, given.request_id)
            return _change(row, "parsed", annotation=annotation)

        return await self._act(intent, change)

    async def retry(self, caller: Caller, given: ActionArguments) -> dict[str, Any]:
        intent = self._intent(Action.RETRY, given.request_id, caller, given.reason)

        async def change(connection: Executor) -> Change:
            row = await self._locked(connection, given.request_id, intent.action)
            turn = round_after(row["override"])
            beginning = repeated(row["routing_output"], row["dispatch_outcomes"], turn)
            override = intent.override(round=turn, before=_before(row))
            await self._reopen(connection, row, beginning, override, pinned_target=row["pinned_target"])
            return _change(row, "accepted")

        return await self._act(intent, change)

    async def replay(self, caller: Caller, given: ReplayArguments) -> dict[str, Any]:
        letter_id = given.dead_letter_id
        intent = self._intent(Action.REPLAY, None, caller, given.reason, dead_letter_id=str(letter_id))
        known = await self.dead_letters.get(letter_id)
        if known is None:
            return await self._act(intent, _no_such_letter)
        request_id: UUID = known["request_id"]

        async def change(connection: Executor) -> Change:
            # A request whose month is gone has no row to lock; of two replays of its letters, one is to restore it.
            await connection.execute(self.queries.lock_name, str(request_id))
            # The request before its letter, as the worker that finishes a request locks them.
            row = await connection.fetchrow(self.queries.lock_request, request_id)
            letter = await connection.fetchrow(self.queries.lock_letter, letter_id)
            if letter is None:
                raise RejectedAsUnknown("dead_letter_id", "no such dead letter")
            if problem := replay_refusal(dict(letter), self.policy, self.clock.now()):
                raise Rejected("dead_letter_id", problem)
            if row is not None and (problem := refusal(intent.action, row["lifecycle_state"])):
                raise Rejected("dead_letter_id", problem, state=row["lifecycle_state"])
            return await self._replay(connection, intent, letter, row)

        return await self._act(intent, change, request_id=request_id)

    async def _act(
        self,
        intent: OperatorIntent,
        change: Callable[[Executor], Awaitable[Change]],
        *,
        request_id: UUID | None = None,
        first: Awaitable[None] | None = None,
    ) -> dict[str, Any]:
        about = request_id or intent.request_id
        try:
            if first is not None:
                await first
            async with self.database.transaction() as connection:
                done = await change(connection)
                outcome: ActionOutcome = "partial" if done.partial else "success"
                audit_id = await self.audit.record(
                    intent, outcome, done.details, request_id=about, connection=connection
                )
        except Exception as error:
            await self._tell_failure(intent, about, error)
            raise
        self._tell(intent, about, outcome)
        self.stop_now(done.ref.request_id)  # the row is changed: no worker may go on with what it was
        if done.state == "accepted":
            self.offer(done.ref)
        elif self.on_end is not None:
            await self.on_end(done.ref.request_id, done.state)
        answer = {
            "outcome": outcome,
            "action": intent.action.value,
            "request_id": done.ref.request_id,
            "lifecycle_state": done.state,
            "operator": intent.operator,
            "reason": intent.reason,
            "performed_at": intent.at,
            "audit_id": audit_id,
            "details": dict(done.details),
        }
        return wire(answer)

    async def _tell_failure(self, intent: OperatorIntent, request_id: UUID | None, error: Exception) -> None:
        outcome: ActionOutcome = "rejected" if isinstance(error, Rejected) else "failed"
        problem = error.message if isinstance(error, ClassifiedError) else type(error).__name__
        self._tell(intent, request_id, outcome, problem)
        try:
            await self.audit.record(intent, outcome, {"problem": problem}, request_id=request_id)
        except Exception as unrecorded:
            # The operator hears of the failure itself; that it is not on record is for the log.
            log.error("operator action not recorded", error=unrecorded, request_id=request_id)

    def _tell(
        self, intent: OperatorIntent, request_id: UUID | None, outcome: ActionOutcome, problem: str | None = None
    ) -> None:
        log.info(
            "operator action", request_id=request_id, caller=intent.operator, outcome=outcome, reason=intent.action
        )
        self.log.write(
            butler="switchboard",
            operation=f"request.{intent.action.value}",
            request_summary={"request_id": str(request_id) if request_id else None},
            result=outcome,
            error=problem,
            actor=intent.operator,
        )

    async def _stop(self, intent: OperatorIntent, request_id: UUID) -> dict[str, Any]:
        async def change(connection: Executor) -> Change:
            row = await self._locked(connection, request_id, intent.action)
            error = RoutingError(f"cancelled by {intent.operator}: {intent.reason}").describe()
            await self._end(connection, row, "errored", error, intent.override(before=_before(row)))
            await self.dead_letters.stop_replays(connection, request_id)
            return _change(row, "errored")

        return await self._act(intent, change)

    async def _replay(self, connection: Executor, intent: OperatorIntent, letter: Record, row: Record | None) -> Change:
        copy = letter["original_payload"]
        stored = row if row is not None else copy
        turn = round_after(row["override"] if row is not None else {"round": letter["replay_count"]})
        beginning = repeated(stored["routing_output"], stored["dispatch_outcomes"], turn)
        override = intent.override(round=turn, dead_letter_id=str(letter["id"]))
        if row is not None:
            await self._reopen(connection, row, beginning, override, pinned_target=row["pinned_target"])
            ref = _reference(row)
        else:
            ref = await self._restore(connection, letter, beginning, override)
        count = await connection.fetchval(self.queries.mark_replay, letter["id"], intent.at)
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

    def _intent(
        self, action: Action, request_id: UUID | None, caller: Caller, reason: str, **payload: Any
    ) -> OperatorIntent:
        return OperatorIntent(
            action=action,
            operator=caller.name,
            reason=reason,
            at=self.clock.now(),
            request_id=request_id,
            payload=payload,
        )


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


def _change(row: Record, state: str, **details: Any) -> Change:
    """A butler that has got the message by now goes on with it; only the request is stopped."""
    goes_on = handed_to(row["routing_output"]) if row["lifecycle_state"] == "progress" else []
    details["was"] = row["lifecycle_state"]
    if goes_on:
        details |= {"handed_to": goes_on, "note": "a butler that has its part already finishes it"}
    return Change(ref=_reference(row), state=state, details=details, partial=bool(goes_on))
