"""What is due runs once, by one process, whatever fails; what was missed is not made up for in bursts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from butlers.butler.config import ScheduleSection
from butlers.butler.runtime import LocalRuntime
from butlers.butler.schedules import LOOK_S, Job, Scheduler
from butlers.butler.sessions import EndedSession, Spawner
from butlers.clock import ManualClock
from butlers.errors import TargetUnavailable
from butlers.ids import Uuid7Factory
from butlers.storage.database import Database, Record
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import MigrationSet
from butlers.telemetry.telemetry import Telemetry
from tests.database import cloned_database

SCHEMA = "general"
START = datetime(2026, 6, 1, 11, 58, tzinfo=UTC)
HOURLY = ScheduleSection(name="hourly", cron="0 * * * *", dispatch_mode="job", job_name="work")
OTHER = ScheduleSection(name="other", cron="0 * * * *", dispatch_mode="job", job_name="more_work")


class SchedulerSystem:
    def __init__(self, database: Database, telemetry: Telemetry) -> None:
        self.database = database
        self.telemetry = telemetry
        self.clock = ManualClock(START)
        self.ran: list[datetime] = []

    async def work(self, _arguments: Mapping[str, Any]) -> dict[str, Any]:
        self.ran.append(self.clock.now())
        await asyncio.sleep(0)
        return {"run": len(self.ran)}

    def spawner(self) -> Spawner:
        return Spawner(
            runtime=LocalRuntime(SCHEMA, self.clock),
            instructions="",
            database=self.database,
            schema=SCHEMA,
            clock=self.clock,
            new_id=Uuid7Factory(self.clock),
            telemetry=self.telemetry,
            max_concurrent=3,
            timeout_s=5,
        )

    def scheduler(self, **jobs: Job) -> Scheduler:
        """The scheduler of one process."""
        return Scheduler(
            database=self.database,
            schema=SCHEMA,
            jobs={"work": self.work, **jobs},
            spawner=self.spawner(),
            clock=self.clock,
            telemetry=self.telemetry,
        )

    async def row(self, name: str = "hourly") -> Record:
        row = await self.database.fetchrow(f"SELECT * FROM {SCHEMA}.scheduled_tasks WHERE name = $1", name)
        assert row is not None
        return row

    def until(self, hour: int, minute: int = 0, *, day: int = 1) -> None:
        target = datetime(2026, 6, day, hour, minute, tzinfo=UTC)
        self.clock.advance((target - self.clock.now()).total_seconds())


@pytest.fixture
async def system(postgres_server: EmbeddedPostgres) -> AsyncIterator[SchedulerSystem]:
    base = MigrationSet(schema=SCHEMA, package="butlers.butler", component="butler")
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(cloned_database(postgres_server, [base]))
        telemetry = Telemetry.create("general", "test-1", clock=ManualClock(START))
        stack.callback(telemetry.shutdown)
        yield SchedulerSystem(database, telemetry)


async def test_a_run_is_recorded(system: SchedulerSystem) -> None:
    scheduler = system.scheduler()
    await scheduler.sync([HOURLY])
    assert await scheduler.tick() == []
    system.until(12)
    assert await scheduler.tick() == [{"name": "hourly", "status": "ok", "mode": "native", "result": {"run": 1}}]
    row = await system.row()
    assert (row["last_run_at"], row["next_run_at"]) == (system.clock.now(), system.clock.now() + timedelta(hours=1))
    assert row["last_result"] == {"status": "ok", "mode": "native", "result": {"run": 1}}


async def test_many_processes_run_one_tick_once(system: SchedulerSystem) -> None:
    processes = [system.scheduler() for _ in range(6)]
    await processes[0].sync([HOURLY])
    for hour in (12, 13, 14):
        system.until(hour)
        await asyncio.gather(*(process.tick() for process in processes for _ in range(2)))
    assert [moment.hour for moment in system.ran] == [12, 13, 14]


async def test_missed_ticks_are_run_once(system: SchedulerSystem) -> None:
    await system.scheduler().sync([HOURLY])
    system.until(9, 30, day=5)  # the machine slept for days
    scheduler = system.scheduler()
    await scheduler.sync([HOURLY])  # and was started again
    for _ in range(3):
        await scheduler.tick()
    assert len(system.ran) == 1
    assert (await system.row())["next_run_at"] == datetime(2026, 6, 5, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "error_class"),
    [(TargetUnavailable("away"), "target_unavailable"), (RuntimeError("a secret"), "internal_error")],
)
async def test_a_failed_job_is_logged_and_runs_at_the_next_tick(
    system: SchedulerSystem, error: Exception, error_class: str, caplog: pytest.LogCaptureFixture
) -> None:
    failing = True

    async def work(arguments: Mapping[str, Any]) -> dict[str, Any]:
        if failing:
            raise error
        return await system.work(arguments)

    scheduler = system.scheduler(work=work)
    await scheduler.sync([HOURLY])
    system.until(12)
    [outcome] = await scheduler.tick()
    assert (outcome["status"], outcome["error"]["class"]) == ("error", error_class)
    assert (await system.row())["last_result"]["error"]["class"] == error_class
    assert "a secret" not in str((await system.row())["last_result"])
    assert [record.getMessage() for record in caplog.records] == ["schedule failed"]
    assert await scheduler.tick() == []  # not in a burst
    failing = False
    system.until(13)
    [outcome] = await scheduler.tick()
    assert outcome["status"] == "ok"
    assert (await system.row())["last_result"]["status"] == "ok"


async def test_a_failing_job_does_not_keep_others_from_running(system: SchedulerSystem) -> None:
    async def work(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        raise RuntimeError("broken")

    scheduler = system.scheduler(work=work, more_work=system.work)
    await scheduler.sync([HOURLY, OTHER])
    system.until(12)
    outcomes = {outcome["name"]: outcome["status"] for outcome in await scheduler.tick()}
    assert outcomes == {"hourly": "error", "other": "ok"}


async def test_a_process_that_stops_skips_only_what_was_under_way(system: SchedulerSystem) -> None:
    """Nothing is moved on before its turn comes."""
    begun = asyncio.Event()

    async def endless(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("never")

    first = system.scheduler(work=endless, more_work=endless)
    await first.sync([HOURLY, OTHER])
    system.until(12)
    ticking = asyncio.create_task(first.tick())
    await begun.wait()
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    ran = await system.scheduler(more_work=system.work).tick()
    assert len(ran) == 1


async def test_a_long_job_keeps_nobody_waiting_and_does_not_overtake_itself(system: SchedulerSystem) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    long_runs = 0

    async def long(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal long_runs
        long_runs += 1
        begun.set()
        await may_end.wait()
        return {}

    scheduler = system.scheduler(work=long, more_work=system.work)
    await scheduler.sync([HOURLY, OTHER])
    system.until(12)
    hands = [asyncio.create_task(scheduler.tick())]
    await begun.wait()
    await scheduler.tick()
    for hour in (13, 14):
        system.until(hour)
        await scheduler.tick()
    assert long_runs == 1
    assert len(system.ran) == 3
    may_end.set()
    await asyncio.gather(*hands)
    await scheduler.tick()
    assert long_runs == 2  # what became due meanwhile runs once


# --- a worker sleeps until something is due --------------------------------------------------------------------------


async def asleep(clock: ManualClock) -> None:
    """Until the worker waits for the clock."""
    async with asyncio.timeout(30):
        while not clock._sleepers:
            await asyncio.sleep(0.01)


@pytest.fixture
async def at_work(system: SchedulerSystem) -> AsyncIterator[Callable[[Scheduler], None]]:
    """Starts a worker, which ends with the test."""
    workers: list[asyncio.Task[None]] = []
    yield lambda scheduler: workers.append(asyncio.create_task(scheduler.run()))
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


async def test_a_worker_wakes_when_a_schedule_is_due(
    system: SchedulerSystem, at_work: Callable[[Scheduler], None]
) -> None:
    done = asyncio.Event()

    async def work(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        done.set()
        return {}

    scheduler = system.scheduler(work=work)
    await scheduler.sync([HOURLY])
    at_work(scheduler)
    await asleep(system.clock)
    assert not done.is_set()
    system.until(12)
    async with asyncio.timeout(30):
        await done.wait()


@pytest.mark.parametrize("same_process", [True, False])
async def test_a_new_schedule_wakes_the_worker(
    system: SchedulerSystem, at_work: Callable[[Scheduler], None], same_process: bool
) -> None:
    done = asyncio.Event()

    async def work(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        done.set()
        return {}

    scheduler = system.scheduler(work=work)
    at_work(scheduler)
    await asleep(system.clock)
    maker = scheduler if same_process else system.scheduler(work=work)
    await maker.create(name="once", cron=None, run_at=system.clock.now(), job_name="work")
    if not same_process:
        system.clock.advance(LOOK_S)
    async with asyncio.timeout(30):
        await done.wait()


async def test_a_long_run_keeps_no_other_worker_waiting(
    system: SchedulerSystem, at_work: Callable[[Scheduler], None]
) -> None:
    done = asyncio.Event()

    async def endless(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def work(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        done.set()
        return {}

    scheduler = system.scheduler(work=endless, more_work=work)
    await scheduler.sync([HOURLY, OTHER])
    for _ in range(2):
        at_work(scheduler)
    await asleep(system.clock)
    system.until(12)
    async with asyncio.timeout(30):
        await done.wait()


async def test_a_schedule_without_native_code_is_a_prompt_under_its_name(system: SchedulerSystem) -> None:
    entry = ScheduleSection(name="digest", cron="0 * * * *", dispatch_mode="job", job_name="no_such_job")
    scheduler = system.scheduler()
    await scheduler.sync([entry])
    system.until(12)
    [outcome] = await scheduler.tick()
    assert (outcome["mode"], outcome["status"]) == ("runtime", "skipped")
    assert await system.database.fetchval(f"SELECT trigger_source FROM {SCHEMA}.sessions") == "schedule:digest"


# --- sessions that are observed --------------------------------------------------------------------------------------


async def test_sessions_are_told_and_a_failing_observer_spoils_nothing(system: SchedulerSystem) -> None:
    heard: list[EndedSession] = []

    async def broken(_session: EndedSession) -> None:
        raise RuntimeError("full")

    async def listening(session: EndedSession) -> None:
        heard.append(session)

    spawner = system.spawner()
    spawner.observe(broken)
    spawner.observe(listening)
    result = await spawner.instruct("Sum up the week.", trigger_source="trigger:operator")
    [session] = heard
    assert (session.text, session.answered, session.speaker) == ("Sum up the week.", result.text, "owner")
    assert await system.database.fetchval(f"SELECT id FROM {SCHEMA}.sessions") == session.session_id
