"""Between Switchboard's doors, wired: routing with what is learned on the way, buffer, processor, fanout, the way out,
and what authors see of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from butlers.butler.runtimes import build_runtime
from butlers.butler.toolbox import Tool
from butlers.daemon.compose.base import Butler
from butlers.daemon.compose.modules import memory_of
from butlers.daemon.services import Service
from butlers.reliability.retry import RetryPolicy
from butlers.storage.files import WorkerLock, dead_workers, forget
from butlers.storage.queries import Queries
from butlers.switchboard.chat_commands import ChatCommands
from butlers.switchboard.dispatch.dispatcher import Circuits, Dispatcher
from butlers.switchboard.dispatch.fanout import Fanout
from butlers.switchboard.extraction.extractor import Extractor, MemoryCapture
from butlers.switchboard.extraction.signals import EXTRACTOR, PROMPT_VERSION, ModelExtractor
from butlers.switchboard.ingress.buffer import Admission, DurableBuffer
from butlers.switchboard.notify import NotifyDispatcher
from butlers.switchboard.operators.dead_letters import DeadLetters
from butlers.switchboard.registry import USUAL_ROUTE_S, Registry
from butlers.switchboard.requests.inbox import LineageReader, MessageInbox, MessageRef
from butlers.switchboard.requests.lifecycle import AfterRequest, RequestProcessor
from butlers.switchboard.requests.signals import Signals
from butlers.switchboard.routing.classifier import LocalClassifier
from butlers.switchboard.routing.conversations import Conversations
from butlers.switchboard.routing.decision import Cascade
from butlers.switchboard.routing.llm_router import (
    TRIAGE,
    Asker,
    ModelRouter,
    Skill,
    models_of,
    prompts_of,
)
from butlers.switchboard.routing.rollout import Rollout

DISPATCH_RETRY = RetryPolicy(max_attempts=3, initial_delay=0.5, max_delay=5.0, jitter=0.3)
ANSWER_MARGIN_S = 5.0  # a caller waits longer than the callee may take
SIGNAL_SWEEP_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    threads: Conversations
    llm: ModelRouter | None  # None: no model is asked
    extractor: Extractor
    tools: Sequence[Tool]


def add_routing(butler: Butler) -> Routing:
    process, settings = butler.process, butler.config.routing
    queries = Queries.load("butlers.switchboard.routing", schema=butler.config.schema_name)
    conversations = Conversations(database=process.database, queries=queries, follow_up_s=settings.follow_up_s)
    rollout = Rollout(
        settings=settings.llm,
        database=process.database,
        queries=queries,
        clock=process.clock,
        new_id=process.new_id,
    )
    askers = _askers(butler)
    llm = _model_router(butler, askers, conversations, rollout) if askers else None
    extractor = _extractor(butler, askers[None] if askers else None)
    butler.add(Service(name="extraction", run=extractor.run))
    runtime = butler.config.butler.runtime
    asked = {"runtime": runtime.type, "model": runtime.model} if askers else {"runtime": None, "model": None}
    return Routing(
        threads=conversations,
        llm=llm,
        extractor=extractor,
        tools=[*rollout.tools({"enabled": bool(askers), **asked}, butler.config.skills), *extractor.tools()],
    )


def _askers(butler: Butler) -> dict[str | None, Asker]:
    """By model, None for the runtime's own; empty when no model may be asked."""
    process, runtime, settings = butler.process, butler.config.butler.runtime, butler.config.routing
    if process.settings.llm != "on" or runtime.type == "local" or not settings.llm.enabled:
        return {}
    return {
        model: Asker(
            runtime=build_runtime(
                runtime.type,
                model or runtime.model,
                runtime.command,
                clock=process.clock,
                environ=process.environment,
                hidden=(process.places.root,),
            ),
            instructions="",
            database=process.database,
            schema=butler.config.schema_name,
            clock=process.clock,
            new_id=process.new_id,
            telemetry=butler.telemetry,
            max_concurrent=runtime.max_concurrent_sessions,
            timeout_s=settings.llm.timeout_s,
            report=butler.report,
        )
        for model in {None, *models_of(settings)}
    }


def _model_router(
    butler: Butler, askers: dict[str | None, Asker], conversations: Conversations, rollout: Rollout
) -> ModelRouter:
    settings = butler.config.routing
    return ModelRouter(
        settings=settings,
        skill=Skill.load(_folder(butler), TRIAGE, prompts_of(settings), key="routing.llm.prompt_version"),
        askers=askers,
        model=butler.config.butler.runtime.model,
        conversations=conversations,
        rollout=rollout,
        clock=butler.process.clock,
    )


def _extractor(butler: Butler, asker: Asker | None) -> Extractor:
    process = butler.process
    skill = Skill.load(_folder(butler), EXTRACTOR, [PROMPT_VERSION], key="skills") if asker else None
    model = ModelExtractor(skill=skill, asker=asker) if skill and asker else None
    return Extractor(
        database=process.database,
        queries=Queries.load("butlers.switchboard.extraction", schema=butler.config.schema_name),
        transport=butler.transport,
        clock=process.clock,
        new_id=process.new_id,
        model=model,
    )


def _folder(butler: Butler) -> Path:
    return Path(butler.config.source).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Orchestration:
    lineage: LineageReader
    notify: NotifyDispatcher
    signals: Signals
    dead_letters: DeadLetters
    dispatcher: Dispatcher
    processor: RequestProcessor
    buffer: DurableBuffer


def orchestration(
    butler: Butler, *, registry: Registry, routing: Routing, admission: Admission, commands: ChatCommands
) -> Orchestration:
    process, schema = butler.process, butler.config.schema_name
    lineage = LineageReader(database=process.database, queries=Queries.load("butlers.switchboard", schema=schema))
    notify, dispatcher = _notify(butler, lineage), _dispatcher(butler, registry)
    signals, inbox = _signals(butler, notify), _inbox(butler)
    dead_letters = DeadLetters(database=process.database, schema=schema, clock=process.clock, new_id=process.new_id)

    def offer(ref: MessageRef) -> None:  # the buffer and its processor know each other
        buffer.offer(ref)

    def offer_later(ref: MessageRef, seconds: float) -> None:
        buffer.offer_later(ref, seconds)

    processor = RequestProcessor(
        inbox=inbox,
        database=process.database,
        registry=registry,
        cascade=Cascade(
            settings=butler.config.routing, local=LocalClassifier(), threads=routing.threads, llm=routing.llm
        ),
        fanout=Fanout(dispatcher=dispatcher),
        signals=signals,
        lineage=lineage,
        dead_letters=dead_letters,
        settings=butler.config.routing,
        telemetry=butler.telemetry,
        worker=process.instance,
        lease=process.lease,
        patience_s=process.settings.request_patience_s,
        clock=process.clock,
        suspects=process.suspects,
        commands=commands,
        offer=offer,
        offer_later=offer_later,
        after=_after(butler, routing),
    )
    buffer = _buffer(butler, inbox, processor, admission)
    _take_over(butler, inbox)
    return Orchestration(
        lineage=lineage,
        notify=notify,
        signals=signals,
        dead_letters=dead_letters,
        dispatcher=dispatcher,
        processor=processor,
        buffer=buffer,
    )


def _after(butler: Butler, routing: Routing) -> Sequence[AfterRequest]:
    """Who learns from a message that was dealt with."""
    memory = memory_of(butler)
    if memory is None:
        return [routing.extractor.offer]
    memory_capture = MemoryCapture(episodes=memory.episodes, clock=butler.process.clock)
    butler.add(Service(name="memory capture", run=memory_capture.run))
    return [routing.extractor.offer, memory_capture.offer]


def _inbox(butler: Butler) -> MessageInbox:
    process = butler.process
    return MessageInbox(
        database=process.database, schema=butler.config.schema_name, clock=process.clock, new_id=process.new_id
    )


def _take_over(butler: Butler, inbox: MessageInbox) -> None:
    """What a killed process had in hand is worked on as soon as the next one is up."""
    directory, worker = butler.process.places.workers, butler.process.instance
    lock = WorkerLock(directory, worker)

    async def take_over() -> None:
        lock.hold()
        dead = dead_workers(directory)
        await inbox.release(dead)
        for worker in dead:
            forget(directory, worker)

    async def release() -> None:
        lock.release()

    butler.add(Service(name="worker lock", before_doors=True, start=take_over, stop=release))


def _buffer(butler: Butler, inbox: MessageInbox, processor: RequestProcessor, admission: Admission) -> DurableBuffer:
    process = butler.process
    buffer = DurableBuffer(
        inbox=inbox,
        process=processor.process,
        leave=admission.occupancy.leave,
        policy=butler.config.buffer,
        recheck_after_s=process.settings.lease_ttl_s + 1,
        clock=process.clock,
        telemetry=butler.telemetry,
    )
    butler.add(Service(name="buffer", run=buffer.run), Service(name="lease keeper", run=processor.keep_renewed))
    return buffer


def _notify(butler: Butler, lineage: LineageReader) -> NotifyDispatcher:
    process = butler.process
    return NotifyDispatcher(
        lineage=lineage,
        transport=butler.transport,
        database=process.database,
        queries=lineage.queries,
        clock=process.clock,
        new_id=process.new_id,
        telemetry=butler.telemetry,
        timeout_s=_patience(butler, lambda _name: USUAL_ROUTE_S)("messenger"),
        patience_s=process.settings.messenger_patience_s,
    )


def _signals(butler: Butler, notify: NotifyDispatcher) -> Signals:
    process = butler.process
    signals = Signals(
        settings=butler.config.lifecycle,
        notifier=notify,
        lineage=notify.lineage,
        database=process.database,
        queries=Queries.load("butlers.switchboard", schema=butler.config.schema_name),
        clock=process.clock,
    )
    butler.add(Service(name="signals", run=signals.sweep, every_s=SIGNAL_SWEEP_S))
    return signals


def _dispatcher(butler: Butler, registry: Registry) -> Dispatcher:
    return Dispatcher(
        transport=butler.transport,
        timeout_of=_patience(butler, registry.route_timeout_s),
        retry=DISPATCH_RETRY,
        circuits=Circuits(
            policy=butler.config.routing.circuit.policy(), clock=butler.process.clock, telemetry=butler.telemetry
        ),
        targets=registry,
        clock=butler.process.clock,
        telemetry=butler.telemetry,
    )


def _patience(butler: Butler, remote: Callable[[str], float]) -> Callable[[str], float]:
    """The seconds that a caller waits for a butler: longer than the butler may take, by its file or by its own word."""
    timeouts = {name: config.butler.registry.route_timeout_s for name, config in butler.process.roster.items()}
    return lambda name: (timeouts[name] if name in timeouts else remote(name)) + ANSWER_MARGIN_S
