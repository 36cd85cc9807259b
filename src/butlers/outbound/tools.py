"""The delivery runtime's operations (`operations/messages.py`), carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic_core import to_json

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.clock import Clock
from butlers.contacts.people import OWNER, People
from butlers.contracts.message_state import MessageState
from butlers.errors import Conflict, Forbidden, NotFound, ValidationError
from butlers.operations import messages as operations
from butlers.operations.messages import AcknowledgeArguments, ListArguments, SendArguments, ShowArguments, SomeArguments
from butlers.operations.operation import Role, TimeRangeArguments, page, place
from butlers.outbound.documents import MessageDocument, parse_document
from butlers.outbound.explain import Explainer
from butlers.outbound.history import MessageHistory
from butlers.outbound.postgres_records import PostgresRecords
from butlers.outbound.queue import QueueAdapter
from butlers.outbound.records import Work
from butlers.outbound.service import MessageDeliveryService, queue_message
from butlers.outbound.templates.locales import canonical_tag

ON_TIME_GOAL, SUCCESS_GOAL = 0.99, 0.995
_TOGETHER = 1_000  # recipients of one statement


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTools:
    service: MessageDeliveryService
    explainer: Explainer
    records: PostgresRecords
    history: MessageHistory
    queue: QueueAdapter
    people: People
    clock: Clock
    new_id: Callable[[], UUID]
    wake: Callable[[], None]

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.SEND, self._send),
            Tool.of(operations.EXPLAIN, self._explain),
            Tool.of(operations.LIST, self._list),
            Tool.of(operations.SHOW, self._show),
            Tool.of(operations.CANCEL, self._cancel),
            Tool.of(operations.ACKNOWLEDGE, self._acknowledge),
            Tool.of(operations.REPLAY, self._replay),
            Tool.of(operations.LEVELS, self._levels),
        ]

    async def _send(self, caller: Caller, arguments: SendArguments) -> dict[str, Any]:
        document = self._document(caller, arguments)
        try:
            sent = await self.service.send_message(document, may_be_known=arguments.idempotency_key is not None)
        except ValidationError as error:
            if [each.field for each in error.fields] == ["id"]:  # it follows from the key
                raise Conflict.of("idempotency_key", "was used for another message") from None
            raise
        return sent.to_wire()

    async def _explain(self, caller: Caller, arguments: SendArguments) -> dict[str, Any]:
        return await self.explainer.explain(self._document(caller, arguments))

    def _document(self, caller: Caller, arguments: SendArguments) -> MessageDocument:
        """The message that the arguments describe, in the caller's name. A key always names the same message."""
        if arguments.locale is not None:
            canonical_tag(arguments.locale)
        given = arguments.model_dump(mode="json", exclude={"message", "policy", "idempotency_key"}, exclude_none=True)
        key = arguments.idempotency_key
        fields = given | {
            "id": str(uuid5(NAMESPACE_URL, f"butlers:message:{caller.name}:{key}") if key else self.new_id()),
            "sender_id": caller.name,
            "recipient_ids": list(dict.fromkeys(arguments.recipient_ids)) or [OWNER],
            "delivery_policy": arguments.policy,
        }
        if arguments.message is not None:
            fields["body"] = arguments.message
        try:
            return parse_document(MessageDocument, to_json(fields), kind="message")
        except ValidationError as error:
            raise _in_arguments(error) from None

    async def _list(self, caller: Caller, arguments: ListArguments) -> dict[str, Any]:
        recipient = await self._person(arguments.recipient)
        sender = caller.name if caller.role is Role.BUTLER else arguments.sender_id  # a butler sees its own
        rows = await self.history.messages(
            *place(arguments.cursor),
            arguments.conversation_id,
            sender,
            recipient,
            arguments.state.value if arguments.state else None,
            arguments.limit + 1,
        )
        shown, cursor = page(rows, arguments.limit)
        return wire({"messages": shown, "next_cursor": cursor})

    async def _show(self, caller: Caller, arguments: ShowArguments) -> dict[str, Any]:
        await self._check_sender(caller, arguments.message_id)
        found = await self.history.message(arguments.message_id, after=arguments.after, limit=arguments.limit)
        return wire(found or {})

    async def _cancel(self, caller: Caller, arguments: SomeArguments) -> dict[str, Any]:
        await self._check_sender(caller, arguments.message_id)
        recipient, changed = await self._person(arguments.recipient), 0
        while True:
            keys = await self.records.cancel(
                arguments.message_id, recipient, detail=f"by {caller.name}", now=self.clock.now(), limit=_TOGETHER
            )
            await self.queue.remove(keys)
            changed += len(keys)
            if len(keys) < _TOGETHER:
                break
        return {"message_id": str(arguments.message_id), "changed": changed}

    async def _acknowledge(self, caller: Caller, arguments: AcknowledgeArguments) -> dict[str, Any]:
        await self._check_sender(caller, arguments.message_id)
        recipient = await self._person(arguments.recipient)
        changed = await self.acknowledge(recipient or "", arguments.message_id)
        return {"message_id": str(arguments.message_id), "changed": changed}

    async def acknowledge(self, recipient_id: str, message_id: UUID | None, *, before: datetime | None = None) -> int:
        """How many messages the recipient has acknowledged by this; what repeats them ends at once. `before`: only what
        was accepted until then, because a repeated request must not acknowledge what came later.
        """
        now = self.clock.now()
        keys = await self.records.acknowledge(recipient_id, message_id, now=now, before=before)
        await self.queue.reschedule(keys, scheduled_at=now)
        self.wake()
        return len(keys)

    async def release_held(self, recipient_id: str) -> None:
        """A person's preferences changed: what waits for a later time is decided about again now."""
        now = self.clock.now()
        if held := await self.records.held(recipient_id, now=now):
            await self.queue.reschedule(held, scheduled_at=now)
            self.wake()

    async def _replay(self, caller: Caller, arguments: SomeArguments) -> dict[str, Any]:
        await self._check_sender(caller, arguments.message_id)
        recipient, changed = await self._person(arguments.recipient), 0
        while keys := await self.history.dead_keys(arguments.message_id, recipient, limit=_TOGETHER):
            found = (await self.records.load(keys)).values()
            replayed = [await self._replay_one(work, caller) for work in found]
            works = [work for work in replayed if work is not None]
            await self.queue.enqueue([queue_message(work) for work in works])
            changed += len(works)
        if not changed:
            raise Conflict.of("message_id", "has no dead letter")
        self.wake()
        return {"message_id": str(arguments.message_id), "changed": changed}

    async def _replay_one(self, work: Work, caller: Caller) -> Work | None:
        """None: another caller was faster."""
        if work.state is not MessageState.DEAD_LETTERED:
            return None
        now, detail = self.clock.now(), f"replayed by {caller.name}"
        changes: dict[str, Any] = {"attempts": 0, "failed_channels": (), "reason": None, "delivery_id": None}
        return await self.records.move(work, MessageState.QUEUED, now=now, scheduled_at=now, detail=detail, **changes)

    async def _levels(self, _caller: Caller, arguments: TimeRangeArguments) -> dict[str, Any]:
        since, until = arguments.between(self.clock.now())
        row = await self.history.service_levels(since, until)
        delivered, dead = row["delivered"], row["dead_lettered"]
        on_time = row.pop("on_time") / delivered if delivered else None
        success = delivered / (delivered + dead) if delivered + dead else None
        goals = {"on_time_ratio": _goal(on_time, ON_TIME_GOAL), "success_ratio": _goal(success, SUCCESS_GOAL)}
        row["blocked"] += row.pop("blocked_at_once")
        ratios = {"on_time_ratio": on_time, "success_ratio": success, "goals": goals}
        return wire({"since": since, "until": until, **row, **ratios})

    async def _person(self, reference: str | None) -> str | None:
        if reference is None:
            return None
        return str((await self.people.resolve_people([reference], field="recipient"))[reference].id)

    async def _check_sender(self, caller: Caller, message_id: UUID) -> None:
        """A butler sees and decides about its own messages, an operator all."""
        sender = await self.history.sender_of(message_id)
        if sender is None:
            raise NotFound.of("message_id", "no such message")
        if caller.role is Role.BUTLER and caller.name != sender:
            raise Forbidden.of("message_id", f"is a message of {sender}, not of {caller.name}")


def _goal(value: float | None, goal: float) -> dict[str, Any]:
    return {"value": value, "goal": goal, "met": None if value is None else value >= goal}


def _in_arguments(error: ValidationError) -> ValidationError:
    """The refusal by the names that the caller used."""
    names: Sequence[tuple[str, str]] = (("delivery_policy", "policy"), ("body", "message"))
    message = error.message.removeprefix("message: ")
    for inner, outer in names:
        message = message.replace(inner, outer)
    fields = tuple(
        type(each)(
            field=each.field.replace("delivery_policy", "policy"),
            error=each.error.replace("template_id or body", "template_id or message, and not both"),
        )
        for each in error.fields
    )
    return ValidationError(message, fields=fields)
