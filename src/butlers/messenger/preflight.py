"""What would happen, without anything happening: the same checks in the same order as on the real way.

    Switchboard   envelope, origin, the request that is answered
    intake        channel, answer, target, recipient lists, idempotency, suppression, approval, admission, breaker
    channel       what its adapter refuses without asking the provider

What is said about an answer depends on Switchboard's record of the request; while Switchboard is away, nothing is said.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from butlers.butler.approvals import MustWait
from butlers.butler.approvals.approvals import Approvals
from butlers.butler.identity import Caller
from butlers.channels.adapter import Adapter, Foresees
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.contracts.notify import NotifyContext, NotifyEnvelope
from butlers.errors import ClassifiedError, ValidationError
from butlers.messenger.admission import Admission
from butlers.messenger.admission_rules import (
    AdmissionState,
    Admitted,
    Known,
    Refused,
    before_admission,
    headroom,
    moved,
)
from butlers.messenger.channel_tools import Lineage
from butlers.messenger.delivery import NewDelivery, channel_tool
from butlers.messenger.parking import tool_args
from butlers.messenger.preparation import Preparation
from butlers.operations.operation import Role

SWITCHBOARD = "switchboard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    preparation: Preparation
    admission: Admission
    approvals: Approvals
    origins: Collection[str]  # the butlers that Switchboard would vouch for
    lineage: Lineage
    channels: Mapping[str, Adapter]  # by name with scope
    clock: Clock

    async def validate(self, caller: Caller, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Schema, fields, origin, lineage, targeting, recipient and content; nothing is stored, charged or sent."""
        try:
            new = await self._prepare(caller, raw)
            state, _ = await self.admission.preview(new)
            settled = before_admission(new, self.admission.policy, state)
            if isinstance(settled, Refused):
                raise settled.error
            if (problem := self._unsendable(new, state)) is not None:
                raise problem
        except ValidationError as error:
            return {"valid": False, "errors": _fields(error)}
        return {"valid": True, "errors": []}

    async def dry_run(self, caller: Caller, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The whole way up to the provider call."""
        try:
            new = await self._prepare(caller, raw)
        except ValidationError as error:
            return _invalid(error)
        state, decision = await self.admission.preview(new)
        if isinstance(decision, Refused) and decision.rule == "suppressed":
            return self._facts(new, state) | _report("suppressed", rule=decision.rule, error=decision.error)
        if isinstance(decision, Refused) and isinstance(decision.error, ValidationError):
            return _invalid(decision.error, rule=decision.rule)
        answer = self._facts(new, state) | await self._described(new, decision)
        problem = self._unsendable(new, state) if answer["would_be_admitted"] else None
        return answer if problem is None else _invalid(problem, rule="adapter")

    async def _prepare(self, caller: Caller, raw: Mapping[str, Any]) -> NewDelivery:
        notify = NotifyEnvelope.parse(raw)
        if caller.role is Role.BUTLER and caller.name not in {notify.origin_butler, SWITCHBOARD}:
            raise invalid("origin_butler", f"is not the caller, who is {caller.name!r}")
        if notify.origin_butler not in self.origins:
            raise invalid("origin_butler", f"is no butler here; there are {', '.join(sorted(self.origins))}")
        notify, source_event = await self._on_record(notify)
        return await self.preparation.prepare(notify, source_event)

    async def _on_record(self, notify: NotifyEnvelope) -> tuple[NotifyEnvelope, Mapping[str, Any] | None]:
        """An answer as Switchboard hands it on, with what is answered; to anything else its record adds nothing."""
        if notify.delivery.intent == "send" or notify.request_id is None:
            return notify, None
        try:
            known = await self.lineage(notify.request_id)
        except ValidationError:  # no such request
            return notify.on_record(None), None
        record = NotifyContext.model_validate_json(to_json(known["request_context"]))
        return notify.on_record(record), known["source_event"]

    def _facts(self, new: NewDelivery, state: AdmissionState) -> dict[str, Any]:
        new, policy, now = moved(new, state.recipients), self.admission.policy, self.clock.now()
        return {
            "valid": True,
            "target_identity": new.target,
            "channel_adapter": new.channel,
            "headroom": headroom(new.admission_request, policy, state.budgets, now),
            "stance": state.budgets.modes.get(new.channel, "normal"),
        }

    async def _described(self, new: NewDelivery, decision: Known | Admitted | Refused) -> dict[str, Any]:
        if isinstance(decision, Known):
            return _report("deduplicated", rule="idempotency", delivery_id=decision.delivery_id)
        if new.target is None:
            return _report("pending_missing_identifier", rule="target")
        if await self._must_wait(new):
            return _report("pending_approval", rule="approval")
        if isinstance(decision, Refused):
            return _report("rejected", rule=decision.rule, error=decision.error)
        return _report("admitted")

    async def _must_wait(self, new: NewDelivery) -> bool:
        tool = next((name for name in ("notify", channel_tool(new.notify)) if name in self.approvals.gated), None)
        return tool is not None and isinstance(await self.approvals.preview(tool, tool_args(new)), MustWait)

    def _unsendable(self, new: NewDelivery, state: AdmissionState) -> ValidationError | None:
        """What the channel's own adapter would refuse; the rest is left to the provider."""
        there = moved(new, state.recipients)
        channel = self.channels.get(there.channel)
        if there.target is None or not isinstance(channel, Foresees):
            return None
        return channel.problem(there.outgoing)


def _report(
    outcome: str, *, rule: str | None = None, error: ClassifiedError | None = None, **more: Any
) -> dict[str, Any]:
    reasons = [{"rule": rule, **error.describe()}] if error else [{"rule": rule, "outcome": outcome}] if rule else []
    return {"would_be_admitted": outcome == "admitted", "outcome": outcome, "reasons": reasons, **more}


def _invalid(error: ValidationError, rule: str = "envelope") -> dict[str, Any]:
    return {
        "valid": False,
        "errors": _fields(error),
        "target_identity": None,
        "channel_adapter": None,
        "headroom": None,
        "would_be_admitted": False,
        "outcome": "invalid",
        "reasons": [{"rule": rule, **error.describe()}],
    }


def _fields(error: ValidationError) -> list[dict[str, str]]:
    return [{"field": field.field, "error": field.error} for field in error.fields] or [
        {"field": "", "error": error.message}
    ]
