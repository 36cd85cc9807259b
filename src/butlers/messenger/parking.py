"""Deliveries that wait for a person: an approval, an identifier that is missing; and the notice to the owner.

A parked delivery has its row and its key, so a repeat of the request finds it. Releasing it means that it passes the
same admission as any other, once; the decision and the release are one transaction.

One notice names everything that has come up since the last one, so a bad hour is a few messages and not hundreds. It
is an ordinary delivery in Messenger's name, on record like the rest, and never about another notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.approvals import Allowed, GatedCall, Hooks, MustWait, PendingAction
from butlers.butler.approvals.approvals import Approvals
from butlers.channels.registry import outbound_names
from butlers.clock import Clock
from butlers.contracts.envelope import Channel, invalid
from butlers.contracts.notify import Delivery, NotifyEnvelope
from butlers.errors import ClassifiedError
from butlers.messenger.admission import Admission, AdmissionBatch, Entry, Taken
from butlers.messenger.admission_rules import Known, Parked, Refused, before_admission
from butlers.messenger.delivery import Decision, NewDelivery, channel_tool, restored
from butlers.messenger.observer import Observer
from butlers.messenger.preparation import Preparation
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger")

MISSING_IDENTIFIER = "missing_identifier"
SOON_S = 10.0  # between notices of channels that ask
ME = "messenger"
KEY = "notice:"
_NAMED = 10  # deliveries that one notice names; more are counted
_WORDS = {
    "uncertain": "may or may not have been sent. Look, then say so: "
    "butlers deliveries settle {id} confirmed_sent (or send_again)",
    "pending_approval": "waits for your approval: butlers approvals approve {action} (or reject)",
    "pending_missing_identifier": "has no address: the contact {contact} has no {channel} identifier",
}
_ACCOUNTS = {"bot": "the bot's account", "user": "your own account, in your name"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parking:
    database: Database
    queries: Queries
    approvals: Approvals
    admission: Admission
    preparation: Preparation
    observer: Observer
    clock: Clock

    def register(self, tools: frozenset[str]) -> None:
        """Say what decisions about deliveries move."""
        hooks = Hooks(on_approved=self._approved, on_closed=self._closed)
        for tool in sorted({*tools, "notify"}):
            self.approvals.register(tool, hooks)
        self.approvals.register(MISSING_IDENTIFIER, Hooks(on_approved=self._look_again, on_closed=self._closed))

    async def hold(self, new: NewDelivery, tools: tuple[str, ...]) -> Entry | Parked | None:
        """Park it, or take it on where a rule lets it pass; None when nothing gates it."""
        tool = next((name for name in tools if name in self.approvals.gated), None)
        if new.target is not None and tool is None:
            return None
        now = self.clock.now()
        async with self.database.transaction() as connection:
            # A repeat at the same moment waits here, and then finds the first one's row instead of asking again.
            state = await self.admission.read(connection, [new], now, locks=True)
            if (settled := before_admission(new, self.admission.policy, state)) is not None:
                return settled
            if new.target is None:
                return await self._park_missing(connection, new, now)
            return await self._ask(connection, new, tool or "", now)

    async def _request(self, connection: Executor, new: NewDelivery, tool: str, now: datetime) -> Allowed | MustWait:
        return await self.approvals.request(
            connection,
            GatedCall(
                tool_name=tool,
                tool_args=tool_args(new),
                summary=_summary(new),
                requested_by=new.notify.origin_butler,
                key=new.idempotency_key,
                subject_id=new.id,
                not_after=new.notify.not_after,
            ),
            now=now,
        )

    async def _ask(self, connection: Executor, new: NewDelivery, tool: str, now: datetime) -> Entry | Parked:
        ruling = await self._request(connection, new, tool, now)
        if isinstance(ruling, Allowed):
            decision = Decision(at=now, rule="approval", verdict="allowed", detail=f"rule {ruling.rule_id}")
            [entry] = await self.admission.enter(connection, [new.decided(decision)], now)
            if not isinstance(entry, Taken):
                await self.approvals.give_back(connection, ruling.rule_id)
            return entry
        decision = Decision(at=now, rule="approval", verdict="pending", detail=f"{tool} needs a person's approval")
        return await self._park(connection, new.decided(decision), "pending_approval", ruling, now)

    async def _park_missing(self, connection: Executor, new: NewDelivery, now: datetime) -> Parked:
        ruling = await self.approvals.park(
            connection,
            GatedCall(
                tool_name=MISSING_IDENTIFIER,
                tool_args=tool_args(new) | {"contact_id": str(new.notify.contact_id)},
                summary=f"A contact has no {new.notify.delivery.channel} identifier; {_summary(new)}",
                requested_by=new.notify.origin_butler,
                # A name space of its own: the delivery may need an approval later, under its own key.
                key=f"missing:{new.idempotency_key}",
                subject_id=new.id,
                not_after=new.notify.not_after,
            ),
            now=now,
        )
        return await self._park(connection, new, "pending_missing_identifier", ruling, now)

    async def _park(
        self, connection: Executor, new: NewDelivery, status: Any, ruling: MustWait, now: datetime
    ) -> Parked:
        batch = AdmissionBatch(taken=[replace(new, status=status, admitted=False, action_id=ruling.action_id)])
        batch.count(new, "parked", status)
        await self.admission.write(connection, batch, now)
        return Parked(delivery_id=new.id)

    # --- release -----------------------------------------------------------------------------------------------------

    async def _approved(self, connection: Executor, action: PendingAction) -> dict[str, Any]:
        if await connection.fetchrow(self.queries.parked_delivery, action.subject_id) is None:
            raise invalid("action_id", "its delivery does not wait any more: it was too late to send it")
        by = f"approved by {action.decided_by}" if action.decided_by else "approved"
        await connection.execute(self.queries.release_parked, action.subject_id, self.clock.now(), by)
        self.observer.decided(action.tool_args, "approved")
        return {"delivery_id": str(action.subject_id)}

    async def _closed(self, connection: Executor, action: PendingAction) -> None:
        status, why = "failed", f"rejected: {action.decision_reason or 'no reason given'}"
        if action.status == "expired":
            status, why = "expired", "nobody decided in time"
        await connection.execute(self.queries.close_parked, action.subject_id, self.clock.now(), status, why)
        self.observer.decided(action.tool_args, action.status)

    async def _look_again(self, connection: Executor, action: PendingAction) -> dict[str, Any] | None:
        """Approving a missing identifier means: it is there now."""
        row = await connection.fetchrow(self.queries.parked_delivery, action.subject_id)
        if row is not None:
            address = await self._identifier(row)
            if address is None:
                raise invalid("contact_id", f"this contact still has no {row['channel']} identifier")
            await self._address(connection, row, address)
        return {"delivery_id": str(action.subject_id)}

    async def address_parked(self) -> int:
        """Let deliveries go on whose contact has an identifier by now; how many."""
        addressed = 0
        for row in await self.database.fetch(self.queries.missing_identifiers):
            if (address := await self._identifier(row)) is None:
                continue
            async with self.database.transaction() as connection:
                # The action before the delivery: decisions take their locks in this order, too.
                result = {"delivery_id": str(row["id"])}
                if not await self.approvals.fulfil(connection, row["action_id"], by="messenger", result=result):
                    continue
                parked = await connection.fetchrow(self.queries.parked_delivery, row["id"])
                if parked is not None:
                    await self._address(connection, parked, address)
                    addressed += 1
        return addressed

    async def _identifier(self, row: Record) -> str | None:
        return await self.preparation.contacts.identifier(row["contact_id"], row["channel"])

    async def _address(self, connection: Executor, row: Record, address: str) -> None:
        """Give it its address and its proper key, and let it meet the rules that need an address."""
        new, now = self.preparation.addressed(restored(row), address), self.clock.now()
        await self.admission.lock(connection)  # its proper key must not appear while another is decided by it
        meanwhile = f"{row['idempotency_key']}::addressed"
        await connection.execute(
            self.queries.address_parked, new.id, new.target, new.address, new.ordering_key, meanwhile, now
        )
        state = await self.admission.read(connection, [new], now)
        match before_admission(new, self.admission.policy, state):
            case Known() as known:
                why = f"the same message went out as {known.delivery_id}"
                await connection.execute(self.queries.close_parked, new.id, now, "failed", why)
            case Refused() as refused:
                await connection.execute(self.queries.close_parked, new.id, now, "failed", refused.error.message)
            case None:
                await connection.execute(self.queries.rekey, new.id, new.idempotency_key)
                await self._go_on(connection, new, now)
        log.info("parked delivery addressed", delivery_id=new.id, channel=row["channel"])

    async def _go_on(self, connection: Executor, new: NewDelivery, now: datetime) -> None:
        tools = ("notify", channel_tool(new.notify))
        tool = next((name for name in tools if name in self.approvals.gated), None)
        ruling = await self._request(connection, new, tool, now) if tool is not None else None
        if isinstance(ruling, MustWait):
            await connection.execute(self.queries.await_approval, new.id, ruling.action_id, now)
        else:
            leave = f", and rule {ruling.rule_id} allows it" if ruling is not None else ""
            why = f"the contact has an identifier now{leave}"
            await connection.execute(self.queries.release_parked, new.id, now, why)


def tool_args(new: NewDelivery) -> dict[str, Any]:
    """A delivery as the arguments of its tool, which rules are matched against."""
    delivery = new.notify.delivery
    given = {
        "channel": delivery.channel,
        "intent": delivery.intent,
        "recipient": new.target,
        "identity_scope": new.identity_scope,
        "message": delivery.message,
        "subject": delivery.subject,
        "html": delivery.html,
        "unsubscribe_url": delivery.unsubscribe_url,
        "origin_butler": new.notify.origin_butler,
    }
    return {name: value for name, value in given.items() if value is not None}


def _summary(new: NewDelivery) -> str:
    delivery = new.notify.delivery
    whom = new.target or f"contact {new.notify.contact_id}"
    account = _ACCOUNTS.get(new.identity_scope, f"the {new.identity_scope} account")
    wants = f"{new.notify.origin_butler} wants to {delivery.intent} a {delivery.channel} message to {whom}"
    return f"{wants} from {account}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notices:
    database: Database
    queries: Queries
    admission: Admission
    preparation: Preparation
    clock: Clock
    interval_s: float
    asking: frozenset[str] = frozenset()  # channels whose uncertain deliveries do not wait for the next notice

    async def tell(self) -> UUID | None:
        """Send what has come up, unless the last notice is too recent; returns the notice's delivery."""
        kinds = await self.database.fetch(self.queries.anything_to_tell)
        if not kinds:
            return None
        # A channel whose policy is `ask` wants its answer at once.
        asked = any(kind["status"] == "uncertain" and kind["channel"] in self.asking for kind in kinds)
        interval = timedelta(seconds=SOON_S if asked else self.interval_s)
        last = await self.database.fetchval(self.queries.last_notice)
        if last is not None and self.clock.now() - last < interval:
            return None
        channel = await self._channel()
        return await self._send(channel) if channel is not None else None

    async def _send(self, channel: Channel) -> UUID | None:
        async with self.database.transaction() as connection:
            rows = await connection.fetch(self.queries.to_tell)
            if not rows:
                return None
            try:
                new = await self.preparation.prepare(notice(rows, channel, self.clock.now()), None)
            except ClassifiedError as error:
                log.error("the owner cannot be told", error=error)
                return None
            (entry,) = await self.admission.enter(connection, [new], self.clock.now())
            if not isinstance(entry, Taken):
                return None
            await connection.execute(self.queries.told, [row["id"] for row in rows])
            return new.id

    async def _channel(self) -> Channel | None:
        """The owner's preferred channel, else any that reaches him."""
        owner = await self.preparation.contacts.owner()
        if owner is None:
            return None
        for channel in (owner.preferred_channel, *outbound_names()):
            if channel is None or f"{channel}.bot" not in self.preparation.channels:
                continue
            if await self.preparation.contacts.identifier(owner.id, channel) is not None:
                return channel
        return None


def notice(rows: Sequence[Record], channel: Channel, now: datetime) -> NotifyEnvelope:
    lines = []
    for row in rows[:_NAMED]:
        what = _WORDS[row["status"]].format(
            id=row["id"], action=row["action_id"], contact=row["contact_id"], channel=row["channel"]
        )
        whom = row["target_identity"] or "a contact"
        lines.append(f"- {row['channel']} from {row['origin_butler']} to {whom} {what}")
    if len(rows) > _NAMED:
        lines.append(f"... and {len(rows) - _NAMED} more: butlers deliveries list --status uncertain")
    head = "One delivery needs you:" if len(rows) == 1 else f"{len(rows)} deliveries need you:"
    return NotifyEnvelope(
        origin_butler=ME,
        delivery=Delivery(
            intent="send", channel=channel, message="\n".join([head, *lines]), subject="A decision is needed"
        ),
        # The moment belongs to the key: what was told, settled and is in doubt again is told again.
        idempotency_key=f"{KEY}{rows[0]['id']}:{now.isoformat()}",
    )
