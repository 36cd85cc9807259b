"""The group committer with a commit that the test opens and closes like a gate."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar

import pytest

from butlers.errors import InternalError, OverloadRejected, TargetUnavailable
from butlers.storage.group_commit import GroupCommitter


class FakeCommit:
    """Records batches; fails batches that hold a bad item; waits while the gate is closed."""

    def __init__(self, *, error: type[Exception] = ValueError) -> None:
        self.batches: list[list[int]] = []
        self.begun = asyncio.Semaphore(0)
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = 0
        self.most_under_way = 0
        self.bad: set[int] = set()
        self._error = error

    async def __call__(self, items: Sequence[int]) -> Sequence[str]:
        self.batches.append(list(items))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.begun.release()
        try:
            await self.gate.wait()
        finally:
            self.under_way -= 1
        if self.bad.intersection(items):
            raise self._error("bad item")
        return [f"done {item}" for item in items]


async def submit_behind_a_running_commit(
    committer: GroupCommitter[int, str], commit: FakeCommit, items: Sequence[int]
) -> list[asyncio.Task[str]]:
    """Item 0 is being committed; the given items wait behind it."""
    commit.gate.clear()
    tasks = [asyncio.create_task(committer.submit(0))]
    await commit.begun.acquire()
    tasks += [asyncio.create_task(committer.submit(item)) for item in items]
    while committer.waiting < len(items):
        await asyncio.sleep(0)
    return tasks


@pytest.fixture
async def commit() -> FakeCommit:
    return FakeCommit()


async def test_a_lone_item_is_committed_at_once(commit: FakeCommit):
    assert await GroupCommitter(commit).submit(7) == "done 7"
    assert commit.batches == [[7]]


async def test_items_that_come_together_are_committed_together(commit: FakeCommit):
    committer = GroupCommitter(commit)

    assert await asyncio.gather(*(committer.submit(item) for item in range(5))) == [f"done {item}" for item in range(5)]
    assert commit.batches == [[0, 1, 2, 3, 4]]


async def test_items_that_come_during_a_commit_become_the_next_one(commit: FakeCommit):
    committer = GroupCommitter(commit)
    tasks = await submit_behind_a_running_commit(committer, commit, [1, 2, 3])
    commit.gate.set()

    assert await asyncio.gather(*tasks) == ["done 0", "done 1", "done 2", "done 3"]
    assert commit.batches == [[0], [1, 2, 3]]


async def test_a_batch_has_a_largest_size(commit: FakeCommit):
    committer = GroupCommitter(commit, max_batch=2)

    await asyncio.gather(*(committer.submit(item) for item in range(5)))

    assert commit.batches == [[0, 1], [2, 3], [4]]


async def test_submitting_again_and_again_never_waits_for_ever(commit: FakeCommit):
    committer = GroupCommitter(commit)

    async with asyncio.timeout(5):
        for item in range(100):
            assert await committer.submit(item) == f"done {item}"


@pytest.mark.parametrize("lanes", [1, 3])
async def test_no_more_commits_are_under_way_than_there_are_lanes(commit: FakeCommit, lanes: int):
    committer = GroupCommitter(commit, max_batch=1, lanes=lanes)
    commit.gate.clear()
    tasks = [asyncio.create_task(committer.submit(item)) for item in range(10)]
    for _ in range(lanes):
        await commit.begun.acquire()
    commit.gate.set()
    await asyncio.gather(*tasks)

    assert commit.most_under_way == lanes


async def test_a_full_queue_refuses_with_a_hint(commit: FakeCommit):
    committer = GroupCommitter(commit, max_waiting=2)
    tasks = await submit_behind_a_running_commit(committer, commit, [1, 2])

    with pytest.raises(OverloadRejected) as refused:
        await committer.submit(3)

    assert refused.value.retry_after == 1
    commit.gate.set()
    assert await asyncio.gather(*tasks) == ["done 0", "done 1", "done 2"]


async def test_a_bad_item_fails_alone(commit: FakeCommit):
    committer = GroupCommitter(commit)
    commit.bad = {2}

    outcomes = await asyncio.gather(*(committer.submit(item) for item in range(4)), return_exceptions=True)

    assert [str(outcome) for outcome in outcomes] == ["done 0", "done 1", "bad item", "done 3"]
    assert commit.batches == [[0, 1, 2, 3], [0], [1], [2], [3]]


async def test_a_database_that_is_away_is_not_asked_once_per_item():
    commit = FakeCommit(error=ConnectionResetError)
    commit.bad = {2}

    outcomes = await asyncio.gather(*map(GroupCommitter(commit).submit, range(4)), return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [ConnectionResetError] * 4
    assert len(commit.batches) < 5


async def test_a_failure_does_not_stop_the_next_commit(commit: FakeCommit):
    committer = GroupCommitter(commit)
    commit.bad = {1}
    with pytest.raises(ValueError, match="bad item"):
        await committer.submit(1)

    assert await committer.submit(2) == "done 2"


async def test_a_submitter_that_leaves_while_waiting_takes_its_item_along(commit: FakeCommit):
    committer = GroupCommitter(commit)
    tasks = await submit_behind_a_running_commit(committer, commit, [1, 2, 3])
    tasks[2].cancel()
    outcomes = asyncio.gather(*tasks, return_exceptions=True)
    while not tasks[2].done():
        await asyncio.sleep(0)
    commit.gate.set()

    assert [str(outcome) for outcome in await outcomes] == ["done 0", "done 1", "", "done 3"]
    assert tasks[2].cancelled()
    assert commit.batches == [[0], [1, 3]]


async def test_a_submitter_that_leaves_during_its_commit_harms_nobody(commit: FakeCommit):
    committer = GroupCommitter(commit)
    commit.gate.clear()
    tasks = [asyncio.create_task(committer.submit(item)) for item in range(3)]
    await commit.begun.acquire()
    tasks[1].cancel()
    commit.gate.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert [str(outcome) for outcome in outcomes] == ["done 0", "", "done 2"]
    assert commit.batches == [[0, 1, 2]]


async def test_a_commit_that_miscounts_is_reported():
    async def forgetful(items: Sequence[int]) -> Sequence[int]:
        return items[:-1]

    with pytest.raises(InternalError, match="0 results came back for 1 items"):
        await GroupCommitter(forgetful).submit(1)


async def test_draining_waits_for_everything(commit: FakeCommit):
    committer = GroupCommitter(commit)
    tasks = await submit_behind_a_running_commit(committer, commit, [1, 2])
    draining = asyncio.create_task(committer.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    commit.gate.set()
    await draining

    assert all(task.done() or committer.waiting == 0 for task in tasks)
    assert commit.batches == [[0], [1, 2]]
    assert await committer.submit(3) == "done 3"


async def test_closing_settles_what_is_there_and_refuses_what_comes(commit: FakeCommit):
    committer = GroupCommitter(commit)
    tasks = await submit_behind_a_running_commit(committer, commit, [1])
    closing = asyncio.create_task(committer.close())
    await asyncio.sleep(0)
    with pytest.raises(TargetUnavailable):
        await committer.submit(2)
    commit.gate.set()
    await closing

    assert await asyncio.gather(*tasks) == ["done 0", "done 1"]


async def test_a_commit_does_not_carry_the_context_of_its_first_submitter():
    trace: ContextVar[str] = ContextVar("trace", default="none")
    seen: list[str] = []

    async def commit(items: Sequence[int]) -> Sequence[int]:
        seen.append(trace.get())
        return items

    trace.set("first submitter")
    await GroupCommitter(commit).submit(1)

    assert seen == ["none"]
