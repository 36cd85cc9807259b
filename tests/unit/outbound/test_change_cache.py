"""A cache that forgets what changed, and trusts nothing while it would not hear of a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from butlers.clock import ManualClock
from butlers.outbound.change_cache import ChangeCache

Key = tuple[str, str]


class Source:
    """The table behind the cache: counts its reads."""

    def __init__(self) -> None:
        self.value = 1
        self.reads: list[list[Key]] = []

    async def load(self, keys: Sequence[Key]) -> Mapping[Key, int]:
        self.reads.append(list(keys))
        return dict.fromkeys(keys, self.value)


class Trust:
    def __init__(self) -> None:
        self.holds = True

    def __call__(self) -> bool:
        return self.holds


A, B, A_ELSEWHERE = ("a", ""), ("b", ""), ("a", "acme")


def cache(clock: ManualClock, *, most: int = 10, trust: Trust | None = None) -> ChangeCache[Key, int]:
    return ChangeCache(ttl_s=300.0, most=most, clock=clock, group_of=lambda key: key[0], is_trusted=trust or Trust())


async def test_only_what_is_missing_is_loaded_and_in_one_read() -> None:
    clock, source = ManualClock(), Source()
    remembered = cache(clock)
    assert await remembered.get_many([A], source.load) == {A: 1}
    assert await remembered.get_many([B, A, A_ELSEWHERE, B], source.load) == {B: 1, A: 1, A_ELSEWHERE: 1}
    assert source.reads == [[A], [B, A_ELSEWHERE]]


async def test_an_entry_is_used_until_the_moment_its_time_is_over() -> None:
    clock, source = ManualClock(), Source()
    remembered = cache(clock)
    await remembered.get_many([A], source.load)
    source.value = 2
    clock.advance(299.9)
    assert await remembered.get_many([A], source.load) == {A: 1}
    clock.advance(0.1)
    assert await remembered.get_many([A], source.load) == {A: 2}


async def test_a_change_forgets_all_of_its_subject_and_nothing_else() -> None:
    clock, source = ManualClock(), Source()
    remembered = cache(clock)
    await remembered.get_many([A, A_ELSEWHERE, B], source.load)
    remembered.forget(["a", "unknown"])
    source.value = 2
    assert await remembered.get_many([A, A_ELSEWHERE, B], source.load) == {A: 2, A_ELSEWHERE: 2, B: 1}


async def test_what_changes_while_it_is_read_is_not_remembered() -> None:
    clock, source = ManualClock(), Source()
    remembered = cache(clock)

    async def read_and_change(keys: Sequence[Key]) -> Mapping[Key, int]:
        loaded = await source.load(keys)
        source.value = 2
        remembered.forget(["a"])  # the notification comes before the answer is stored
        return loaded

    assert await remembered.get_many([A], read_and_change) == {A: 1}
    assert await remembered.get_many([A], source.load) == {A: 2}


async def test_without_trust_every_call_loads_and_nothing_is_remembered() -> None:
    clock, source, trust = ManualClock(), Source(), Trust()
    remembered = cache(clock, trust=trust)
    await remembered.get_many([A], source.load)
    trust.holds = False
    source.value = 2
    assert await remembered.get_many([A, B], source.load) == {A: 2, B: 2}
    assert await remembered.get_many([A, B], source.load) == {A: 2, B: 2}
    assert source.reads == [[A], [A, B], [A, B]]
    assert len(remembered) == 1


async def test_the_oldest_entries_give_way() -> None:
    clock, source = ManualClock(), Source()
    remembered = cache(clock, most=3)
    for number in range(10):
        await remembered.get_many([(f"s{number}", "")], source.load)
    assert len(remembered) == 3
    source.reads.clear()
    await remembered.get_many([(f"s{number}", "") for number in range(6, 10)], source.load)
    assert source.reads == [[("s6", "")]]
