"""The delivery runtime, wired into Switchboard: service, worker, feeder, queue and its operations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool
from butlers.contracts.message_state import ENDED
from butlers.contracts.notify import NotifyEnvelope, NotifyResponse
from butlers.daemon.compose.base import Butler
from butlers.daemon.compose.preferences import PreferenceParts
from butlers.daemon.compose.templates import add_templates
from butlers.daemon.services import Service
from butlers.operations.deliveries import STATUS
from butlers.operations.operation import MESSENGER, SWITCHBOARD, Role
from butlers.outbound.delivery import Ports
from butlers.outbound.explain import Explainer
from butlers.outbound.hand_over import Renderer, SwitchboardHandOver
from butlers.outbound.history import MessageHistory
from butlers.outbound.postgres_records import PostgresRecords
from butlers.outbound.queue_adapters import QueueMonitor, open_queue
from butlers.outbound.records import Work
from butlers.outbound.service import Inputs, MessageDeliveryService
from butlers.outbound.tools import MessageTools
from butlers.outbound.worker import Feeder, Worker
from butlers.switchboard.notify import NotifyDispatcher
from butlers.telemetry.catalogue import OUTBOUND_ENDED, OUTBOUND_LATENESS

FEED_EVERY_S = 5.0
MONITOR_EVERY_S = 5.0
DRAIN_S = 10.0


def add_outbound(butler: Butler, notify: NotifyDispatcher, preferences: PreferenceParts) -> list[AnyTool]:
    """The tools, those of preferences and templates among them; the loops are added to the butler."""
    process, templates = butler.process, add_templates(butler)
    clock, records = process.clock, PostgresRecords(process.database)
    queue = open_queue(process.settings.outbound_queue, database=process.database, clock=clock, new_id=process.new_id)
    inputs = Inputs(gate=preferences.gate, preferences=preferences.preferences)
    feeder = Feeder(records=records, queue=queue, clock=clock)
    ports = Ports(
        records=records,
        people=preferences.people,
        inputs=inputs,
        messenger=_hand_over(butler, notify, preferences, templates.templates, records),
        clock=clock,
        moved=partial(_observe, butler),
        feed=feeder.feed,
    )
    worker = Worker(queue=queue, ports=ports, name=process.instance)
    service = MessageDeliveryService(
        people=preferences.people,
        inputs=inputs,
        records=records,
        queue=queue,
        clock=clock,
        templates=templates.templates,
        wake=worker.wake,
    )
    tools = MessageTools(
        service=service,
        explainer=Explainer(service=service, records=records),
        records=records,
        history=MessageHistory(process.database),
        queue=queue,
        people=preferences.people,
        clock=clock,
        new_id=process.new_id,
        wake=worker.wake,
    )
    preferences.store.on_change = tools.release_held
    preferences.add_acknowledge(partial(_acknowledge, tools))
    butler.add(
        Service(name="outbound queue", stop=queue.close),
        Service(
            name="outbound feeder",
            start=partial(feeder.refill, records) if process.settings.outbound_queue == "memory" else None,
            run=feeder.run_once,
            every_s=FEED_EVERY_S,
        ),
        Service(name="outbound worker", run=worker.run, drain=partial(worker.close, DRAIN_S)),
        Service(
            name="outbound monitor", run=QueueMonitor(queue, butler.telemetry, clock).run_once, every_s=MONITOR_EVERY_S
        ),
    )
    return [*tools.tools(), *preferences.tools, *templates.tools]


def _hand_over(
    butler: Butler, notify: NotifyDispatcher, preferences: PreferenceParts, renderer: Renderer, records: PostgresRecords
) -> SwitchboardHandOver:
    async def dispatch(origin: str, envelope: NotifyEnvelope) -> NotifyResponse:
        return await notify.dispatch(Caller(name=origin, role=Role.BUTLER), envelope.to_wire())

    async def status_of(delivery_id: UUID) -> Mapping[str, Any]:
        return await butler.transport.call(MESSENGER, STATUS.name, {"delivery_id": str(delivery_id)})

    return SwitchboardHandOver(
        renderer=renderer,
        records=records,
        dispatch=dispatch,
        status_of=status_of,
        butlers=frozenset(butler.process.roster) - {MESSENGER},
        speaker=SWITCHBOARD,
        unsubscribe_url=preferences.links.url_for,
    )


async def _acknowledge(tools: MessageTools, contact_id: UUID, received_at: datetime, _request_id: UUID) -> str:
    """What was sent before the command was received: a request that is worked on again reaches no later message."""
    count = await tools.acknowledge(str(contact_id), None, before=received_at)
    return f"Acknowledged: {count} message{'' if count == 1 else 's'}." if count else "There is nothing to acknowledge."


def _observe(butler: Butler, work: Work) -> None:
    """Count ends, and how late each delivery was."""
    if work.state not in ENDED:
        return
    channel, outcome = work.channel, work.state.value
    late = max((work.ended_at or work.scheduled_at) - work.scheduled_at, timedelta())
    butler.telemetry.count(OUTBOUND_ENDED, channel=channel, outcome=outcome)
    butler.telemetry.observe(OUTBOUND_LATENESS, late.total_seconds() * 1_000, channel=channel, outcome=outcome)
