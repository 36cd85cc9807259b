"""Modules start after what they need and stop in reverse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.butler.modules import REQUIRES, Module, ModuleHost, in_dependency_order
from butlers.errors import ConfigurationError


@given(st.lists(st.sampled_from(sorted(REQUIRES))))
def test_each_stands_after_what_it_needs(names: list[str]) -> None:
    order = in_dependency_order(names)
    assert sorted(order) == sorted(set(names))
    for name in order:
        needs = [need for need in REQUIRES[name] if need in order]
        assert all(order.index(need) < order.index(name) for need in needs)


def test_the_order_does_not_depend_on_the_order_of_the_file() -> None:
    assert in_dependency_order(["approvals", "telegram", "email"]) == in_dependency_order(
        ["email", "telegram", "approvals"]
    )


def test_modules_that_need_each_other_are_a_mistake() -> None:
    with pytest.raises(ConfigurationError) as caught:
        in_dependency_order(["a", "b"], {"a": ("b",), "b": ("a",)}, source="here.toml")
    assert (caught.value.source, caught.value.key) == ("here.toml", "modules")
    assert "a" in caught.value.problem and "b" in caught.value.problem


def module(name: str, journal: list[str], *, fails: bool = False) -> Module:
    def step(word: str, broken: bool = False) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            journal.append(f"{word} {name}")
            if broken:
                raise RuntimeError(name)

        return run

    return Module(name=name, start=step("start", fails), stop=step("stop"))


async def test_they_start_in_order_and_stop_in_reverse() -> None:
    journal: list[str] = []
    host = ModuleHost({name: module(name, journal) for name in ("approvals", "email", "telegram")})
    await host.start()
    assert host.names[-1] == "approvals"
    await host.stop()
    started, stopped = journal[:3], journal[3:]
    assert started == [f"start {name}" for name in host.names]
    assert stopped == [f"stop {name}" for name in reversed(host.names)]


async def test_a_failed_start_stops_what_had_started() -> None:
    journal: list[str] = []
    modules = {name: module(name, journal, fails=name == "approvals") for name in ("approvals", "email", "telegram")}
    host = ModuleHost(modules)
    with pytest.raises(RuntimeError, match="approvals"):
        await host.start()
    assert journal[-2:] == [f"stop {name}" for name in reversed(host.names[:-1])]
    before = list(journal)
    await host.stop()
    assert journal == before, "nothing is stopped twice"
