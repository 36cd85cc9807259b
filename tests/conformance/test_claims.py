"""Every table whose rows are claimed keeps the promises of `butlers.storage.claims`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from butlers.daemon.settings import shipped_roster
from butlers.daemon.system import migration_sets
from butlers.roster import load_roster
from butlers.storage.claims import MOST_DEATHS, SUSPECT_AFTER, Claim
from butlers.storage.embedded import EmbeddedPostgres
from tests.conformance.claim_tables import CASES, LEASE_S, LIMIT, Case, Fixture
from tests.database import cloned_database


def over(cases: Iterable[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("given", list(cases), ids=str, indirect=True)


every_table = over(CASES)
# What a dead delivery worker held is settled by its wire log before it is claimed again.
tables_that_count_deaths = over(case for case in CASES if case.table.takes_over)
tables_with_a_quarantine = over(case for case in CASES if case.table.quarantined)
tables_with_an_order = over(case for case in CASES if case.same_line)


@pytest.fixture
async def given(request: pytest.FixtureRequest, postgres_server: EmbeddedPostgres) -> AsyncIterator[Fixture]:
    case: Case = request.param
    tables = migration_sets([*load_roster(shipped_roster()).values()])
    async with cloned_database(postgres_server, tables, max_size=8) as database:
        await database.execute(
            "CREATE TABLE switchboard.message_inbox_of_tests PARTITION OF switchboard.message_inbox DEFAULT"
        )
        yield Fixture(case=case, database=database)


@every_table
async def test_a_row_is_held_by_one_worker_until_it_is_settled(given: Fixture) -> None:
    key = await given.add()
    claim = await given.must_claim(key)
    assert await given.state(key) == given.case.table.held
    assert await given.claim(key, "two") is None
    assert await given.settle(claim)
    assert await given.claim(key, "two") is None
    assert await given.state(key) == given.case.ended[given.case.table.state]


@every_table
async def test_of_many_workers_one_gets_each_row(given: Fixture) -> None:
    keys = [await given.add() for _ in range(12)]

    async def work(worker: str) -> list[Claim]:
        claims = [await given.claim(key, worker) for key in keys]
        return [claim for claim in claims if claim is not None]

    won = [
        claim for claims in await asyncio.gather(*(work(f"worker {number}") for number in range(6))) for claim in claims
    ]
    assert sorted(str(claim.key) for claim in won) == sorted(map(str, keys))
    assert len({claim.token for claim in won}) == len(keys)


@every_table
async def test_a_renewed_claim_outlives_its_first_lease(given: Fixture) -> None:
    key = await given.add()
    claim = await given.must_claim(key)
    given.clock.advance(LEASE_S - 1)
    assert await given.claims.renew([claim], lease_s=LEASE_S) == {key}
    given.clock.advance(LEASE_S - 1)
    assert await given.take_over(key, "two") is None
    assert await given.settle(claim)


@every_table
async def test_what_a_dead_worker_held_is_taken_over_and_the_late_worker_writes_nothing(given: Fixture) -> None:
    key = await given.add()
    late = await given.must_claim(key)
    given.worker_dies()
    taken = await given.take_over(key, "two")
    assert taken is not None
    assert taken.token != late.token
    assert await given.claims.renew([late], lease_s=LEASE_S) == set()
    assert not await given.record(late)
    assert not await given.settle(late)
    assert (await given.row(key))["claimed_by"] == "two"
    assert await given.settle(taken)


@every_table
async def test_a_late_worker_that_nobody_replaced_still_settles(given: Fixture) -> None:
    key = await given.add()
    claim = await given.must_claim(key)
    given.worker_dies()
    assert await given.settle(claim)


@every_table
async def test_the_work_of_a_worker_known_to_be_dead_needs_no_lease_to_run_out(given: Fixture) -> None:
    key, other = await given.add(), await given.add()
    await given.must_claim(key, "dead")
    await given.must_claim(other, "alive")
    assert await given.claims.end_leases_of(["dead"]) == 1
    assert await given.take_over(key, "two") is not None
    assert await given.take_over(other, "two") is None


@every_table
async def test_what_is_given_back_does_not_count_and_is_free_at_once(given: Fixture) -> None:
    key = await given.add()
    claim = await given.must_claim(key)
    assert len(await given.claims.give_back([claim])) == 1
    assert (await given.row(key))["attempts"] == 0
    assert await given.claim(key, "two") is not None
    assert (await given.row(key))["attempts"] == 1


@every_table
async def test_whoever_holds_a_row_keeps_it_when_a_late_worker_gives_it_back(given: Fixture) -> None:
    key = await given.add()
    late = await given.must_claim(key)
    given.worker_dies()
    taken = await given.take_over(key, "two")
    assert taken is not None
    await given.claims.give_back([late])
    assert await given.claim(key, "three") is None
    assert await given.settle(taken)


@every_table
async def test_several_claims_are_renewed_and_settled_together(given: Fixture) -> None:
    keys = [await given.add() for _ in range(3)]
    claims = [await given.must_claim(key) for key in keys]
    await given.settle(claims[0])
    assert await given.claims.renew(claims, lease_s=LEASE_S) == set(keys[1:])
    assert await given.claims.settle_all(claims, given.case.ended) == set(keys[1:])


async def _dies_over(given: Fixture, key: tuple[Any, ...]) -> None:
    assert await given.take_over(key, "one") is not None
    given.worker_dies()


@tables_that_count_deaths
async def test_a_row_that_saw_two_deaths_is_claimed_only_as_a_suspect(given: Fixture) -> None:
    key = await given.add()
    for _ in range(SUSPECT_AFTER):
        assert await given.claim(key, suspects=False) is not None
        given.worker_dies()
    assert await given.claim(key, suspects=False) is None
    assert await given.claim(key, suspects=True) is not None


@tables_that_count_deaths
async def test_deaths_are_counted_up_to_the_limit_and_a_given_back_attempt_is_not_one(given: Fixture) -> None:
    assert LIMIT == MOST_DEATHS
    key = await given.add()
    for _ in range(LIMIT - 1):
        await _dies_over(given, key)
    await given.claims.give_back([await given.must_claim(key)])
    assert (await given.row(key))["attempts"] == LIMIT - 1
    await _dies_over(given, key)
    assert (await given.row(key))["attempts"] == LIMIT


@tables_with_a_quarantine
async def test_the_engine_quarantines_where_a_table_has_a_state_for_it(given: Fixture) -> None:
    dead = given.case.table.quarantined
    abandoned, failed = await given.add(), await given.add()
    for _ in range(LIMIT):
        assert await given.claims.quarantine_abandoned({"last_error": "died"}) == 0
        await _dies_over(given, abandoned)
        await given.claims.give_back([await given.must_claim(failed)], counted=True)
    assert await given.state(failed) == dead
    assert await given.claims.quarantine_abandoned({"last_error": "died"}) == 1
    assert await given.state(abandoned) == dead
    assert (await given.row(abandoned))["last_error"] == "died"


@tables_with_an_order
async def test_nothing_overtakes_in_a_conversation(given: Fixture) -> None:
    line = {given.case.same_line: "conversation"}
    first = await given.add(**line)
    given.clock.advance(1)
    second, other = await given.add(**line), await given.add()
    claims = await given.claim_next([first, second, other])
    assert set(claims) == {first, other}
    assert await given.claim_next([second]) == {}
    await given.settle(claims[first])
    assert set(await given.claim_next([second])) == {second}
