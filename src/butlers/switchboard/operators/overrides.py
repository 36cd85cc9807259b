"""Operators' actions on requests (seed 003, "Human Override and Operator Controls").

    lock the row -> may this be done now? -> change it, tell its record, audit it: one transaction
                 -> stop the work that is under way, put the request back into the queue

Who acts is who the transport says it is. A refused action is audited, too, and so is one that failed.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from butlers.butler.activity import Activity
from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.channels.registry import followed_names
from butlers.clock import Clock
from butlers.errors import ClassifiedError, Conflict, FieldError, NotFound, RoutingError
from butlers.operations import operators as operations
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
from butlers.switchboard.operators.audit import ActionOutcome, AuditLog, OperatorIntent
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
from butlers.switchboard.requests.inbox import MessageRef
from butlers.telemetry import get_logger

log = get_logger("butlers.operators")

OnEnd = Callable[[UUID, str], Awaitable[None]]
Given = ActionArguments | RerouteArguments | ForceCompleteArguments | ReplayArguments


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
    audit: AuditLog
    clock: Clock
    offer: Callable[[MessageRef], object]  # into the buffer
    stop_now: Callable[[UUID], None]  # the worker of this process that has it
    on_end: OnEnd | None = None  # tells its author, and the message that waits behind it
    policy: ReplayPolicy = field(default_factory=ReplayPolicy)

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operation, functools.partial(self._act, action))
            for operation, action in (
                (operations.REROUTE, Action.MANUAL_REROUTE),
                (operations.CANCEL, Action.CANCEL),
                (operations.ABORT, Action.ABORT),
                (operations.RETRY, Action.RETRY),
                (operations.REPLAY, Action.REPLAY),
                (operations.FORCE_COMPLETE, Action.FORCE_COMPLETE),
            )
        ]

    async def _act(self, action: Action, caller: Caller, given: Given) -> dict[str, Any]:
        intent = OperatorIntent(
            action=action,
            operator=caller.name,
            reason=given.reason,
            at=self.clock.now(),
            payload=given.model_dump(mode="json", exclude={"request_id", "reason"}),
        )
        if isinstance(given, ReplayArguments):
            letter = await self.dead_letters.get(given.dead_letter_id)
            request_id: UUID | None = letter["request_id"] if letter else None
        else:
            request_id = given.request_id
        try:
            if isinstance(given, RerouteArguments):
                await self._check_target(given.target)
            async with self.database.transaction() as connection:
                if isinstance(given, ReplayArguments):
                    done = await self._replay(connection, intent, given.dead_letter_id, request_id)
                else:
                    done = await self._change(connection, intent, given.request_id)
                outcome: ActionOutcome = "partial" if done.partial else "success"
                audit_id = await self.audit.record(
                    intent, outcome, done.details, request_id=request_id, connection=connection
                )
        except Exception as error:
            await self._tell_failure(intent, request_id, error)
            raise
        self._tell(intent, request_id, outcome)
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

    async def _change(self, connection: Executor, intent: OperatorIntent, request_id: UUID) -> Change:
        """Every action but a replay."""
        row = await connection.fetchrow(self.queries.lock_request, request_id)
        if row is None:
            raise RejectedAsUnknown("request_id", "no such request")
        was, payload = row["lifecycle_state"], intent.payload
        if problem := refusal(intent.action, was):
            raise Rejected("request_id", problem, state=was)
        override = intent.override(**payload, before={"state": was, "error": row["lifecycle_error"]})
        match intent.action:
            case Action.FORCE_COMPLETE:
                state = "parsed"
                await self._end(connection, row, state, None, override)
                await self.dead_letters.resolve(connection, request_id)
            case Action.CANCEL | Action.ABORT:
                state = "errored"
                error = RoutingError(f"cancelled by {intent.operator}: {intent.reason}").describe()
                await self._end(connection, row, state, error, override)
                await self.dead_letters.stop_replays(connection, request_id)
            case _:
                state, turn, target = "accepted", round_after(row["override"]), payload.get("target")
                beginning = repeated(row["routing_output"], row["dispatch_outcomes"], turn)
                if target is not None:
                    why = f"operator {intent.operator}: {intent.reason}"
                    beginning = rerouted(row["normalized_text"], target, why=why, turn=turn)
                await self._reopen(connection, row, beginning, override | {"round": turn}, target=target)
        # A butler that has got the message by now goes on with it; only the request is stopped.
        goes_on = handed_to(row["routing_output"]) if was == "progress" else []
        details = {**payload, "was": was}
        if goes_on:
            details |= {"handed_to": goes_on, "note": "a butler that has its part already finishes it"}
        return Change(ref=_reference(row), state=state, details=details, partial=bool(goes_on))

    async def _replay(
        self, connection: Executor, intent: OperatorIntent, letter_id: UUID, request_id: UUID | None
    ) -> Change:
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
        stored = row if row is not None else letter["original_payload"]
        turn = round_after(row["override"] if row is not None else {"round": letter["replay_count"]})
        beginning = repeated(stored["routing_output"], stored["dispatch_outcomes"], turn)
        override = intent.override(**intent.payload, round=turn)
        if row is not None:
            await self._reopen(connection, row, beginning, override)
            ref = _reference(row)
        else:
            ref = await self._restore(connection, letter, beginning, override)
        count = await connection.fetchval(self.queries.mark_replay, letter_id, intent.at)
        details = {**intent.payload, "replay_count": count, "restored": row is None}
        return Change(ref=ref, state="accepted", details=details)

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
        self.audit.report(
            Activity(
                butler="switchboard",
                operation=f"request.{intent.action.value}",
                request_summary={"request_id": str(request_id) if request_id else None},
                result=outcome,
                error=problem,
                actor=intent.operator,
                at=self.clock.now(),
            )
        )

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
        target: str | None = None,  # that a person named; None: as it was
    ) -> None:
        await connection.execute(
            self.queries.reopen_request,
            row["request_id"],
            row["received_at"],
            target or row["pinned_target"],
            beginning.routing_output,
            beginning.outcomes,
            override,
            self.clock.now(),
        )


def _reference(row: Record) -> MessageRef:
    return MessageRef(
        request_id=row["request_id"],
        received_at=row["received_at"],
        policy_tier=row["policy_tier"],
        source_channel=row["source_channel"],
    )
