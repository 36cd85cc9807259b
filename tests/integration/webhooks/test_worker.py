"""At least once, on the schedule, a few at a time for each endpoint, whatever the receiver and other workers do."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from email.utils import format_datetime

import pytest

from butlers.webhooks.deliveries import FAILED_REASON
from butlers.webhooks.worker import SLOTS
from tests.integration.webhooks.receiver import Receiver, dripping_head, endless_body, receiver, silence, status
from tests.integration.webhooks.sending import LEASE, SCHEDULE, SECRET, Sending


async def test_an_event_that_is_published_again_is_one_delivery(sending: Sending, hooks: Receiver):
    await sending.endpoint(hooks.url)
    assert await sending.publish(3) == 3
    assert await sending.publish(4) == 1
    assert await sending.attempt() == 4
    assert [one.event["data"]["number"] for one in sorted(hooks.received, key=lambda one: one.id)] == [1, 2, 3, 4]
    assert await sending.publish(4) == 0
    assert await sending.attempt() == 0


async def test_attempts_follow_the_schedule_and_then_the_event_is_set_aside(sending: Sending, hooks: Receiver):
    hooks.usual = status(500)
    await sending.endpoint(hooks.url)
    await sending.publish()
    worker = sending.worker()
    assert await sending.attempt(worker) == 1
    for pause in SCHEDULE:
        sending.clock.advance(pause - 1)
        assert await sending.attempt(worker) == 0
        sending.clock.advance(1)
        assert await sending.attempt(worker) == 1
    [row] = await sending.rows()
    assert (row["state"], row["attempts"], row["last_status"]) == ("dead_lettered", len(SCHEDULE) + 1, 500)
    sending.clock.advance(86_400)
    assert await sending.attempt(worker) == 0
    stamps = [int(one.headers["webhook-timestamp"]) for one in hooks.received]
    assert stamps == sorted(set(stamps))  # each attempt is signed with its own time
    assert len({(one.id, one.body) for one in hooks.received}) == 1
    assert all(one.is_signed_with(SECRET) for one in hooks.received)


@pytest.mark.parametrize("as_date", [False, True])
async def test_a_receiver_that_asks_for_time_gets_it(sending: Sending, hooks: Receiver, as_date: bool):
    moment = format_datetime(sending.clock.now() + timedelta(seconds=900), usegmt=True)
    hooks.answers.append(status(429, Retry_After=moment if as_date else "900"))
    await sending.endpoint(hooks.url)
    await sending.publish()
    worker = sending.worker()
    await sending.attempt(worker)
    sending.clock.advance(899)
    assert await sending.attempt(worker) == 0
    sending.clock.advance(1)
    assert await sending.attempt(worker) == 1
    assert await sending.states() == ["delivered"]


async def test_a_redirect_is_not_followed(sending: Sending, hooks: Receiver):
    async with receiver() as elsewhere:
        hooks.usual = status(307, Location=elsewhere.url)
        await sending.endpoint(hooks.url)
        await sending.publish()
        await sending.attempt()
        assert elsewhere.received == []
    [row] = await sending.rows()
    assert (row["state"], row["last_status"]) == ("pending", 307)
    assert "redirects are not followed" in row["last_error"]


async def test_an_answer_without_an_end_costs_nothing_but_its_connection(sending: Sending, hooks: Receiver):
    hooks.answers += [endless_body(200), endless_body(500)]
    await sending.endpoint(hooks.url)
    await sending.publish(2)
    await sending.attempt()
    assert sorted(await sending.states()) == ["delivered", "pending"]  # each by its status


async def test_a_receiver_that_drips_is_cut_off(sending: Sending, hooks: Receiver):
    closed = asyncio.Event()
    hooks.answers.append(dripping_head(closed))
    sending.timeout_s = 0.3
    await sending.endpoint(hooks.url)
    await sending.publish()
    await sending.attempt()
    [row] = await sending.rows()
    assert (row["state"], row["last_status"]) == ("pending", None)
    assert row["last_error"] == "the receiver gave no answer within 0.3 s"
    async with asyncio.timeout(30):
        await closed.wait()  # the connection is gone, too


async def test_a_receiver_that_is_away_is_tried_again(sending: Sending):
    async with receiver() as gone:
        pass
    await sending.endpoint(gone.url)
    await sending.publish()
    await sending.attempt()
    [row] = await sending.rows()
    assert (row["state"], row["last_status"]) == ("pending", None)
    assert row["last_error"] == "the receiver cannot be reached (ConnectError)"


async def test_a_slow_endpoint_has_its_few_slots_and_delays_no_other(sending: Sending, hooks: Receiver):
    release = asyncio.Event()
    async with receiver() as slow:
        slow.usual = silence(release)
        await sending.endpoint(slow.url)
        await sending.endpoint(hooks.url)
        await sending.publish(10)
        worker, other = sending.worker("one"), sending.worker("two")
        assert await worker.run_once() == 2 * SLOTS
        await slow.count(SLOTS)
        while len(hooks.received) < 10:
            await hooks.count(len(hooks.received))
            await asyncio.gather(worker.run_once(), other.run_once())
        assert slow.most_at_once == len(slow.received) == SLOTS  # also with two workers
        release.set()
        while set(await sending.states()) != {"delivered"}:
            await worker.settled()
            await other.settled()
            await worker.run_once()
        assert slow.most_at_once == SLOTS
        assert len({one.id for one in slow.received}) == 10


async def test_what_a_dead_worker_held_is_sent_again_under_the_same_id(sending: Sending, hooks: Receiver):
    release = asyncio.Event()
    hooks.answers.append(silence(release))
    await sending.endpoint(hooks.url)
    await sending.publish()
    dead = sending.worker("dead")
    await dead.run_once()  # and never renews
    await hooks.count(1)
    alive = sending.worker("alive")
    assert await sending.attempt(alive) == 0
    sending.clock.advance(LEASE.ttl + 1)
    assert await sending.attempt(alive) == 1
    assert len({one.id for one in hooks.received}) == 1
    assert len(hooks.received) == 2
    [row] = await sending.rows()
    assert (row["state"], row["claimed_by"], row["attempts"]) == ("delivered", "alive", 2)
    release.set()  # the late worker writes nothing
    await dead.settled()
    assert [after | {"updated_at": None} for after in await sending.rows()] == [row | {"updated_at": None}]


async def test_a_worker_that_lives_keeps_what_it_has(sending: Sending, hooks: Receiver):
    release = asyncio.Event()
    hooks.answers.append(silence(release))
    await sending.endpoint(hooks.url)
    await sending.publish()
    worker, other = sending.worker("one"), sending.worker("two")
    running = asyncio.create_task(worker.run())
    await hooks.count(1)
    expires = (await sending.rows())[0]["lease_expires_at"]
    for _ in range(5):
        sending.clock.advance(LEASE.renew_every)
        while (renewed := (await sending.rows())[0]["lease_expires_at"]) == expires:
            await asyncio.sleep(0.01)
        expires = renewed
        assert await other.run_once() == 0
    release.set()
    await worker.settled()
    assert await sending.states() == ["delivered"]
    running.cancel()


async def test_a_stop_gives_back_what_does_not_end_in_time(sending: Sending, hooks: Receiver):
    hooks.answers.append(silence(asyncio.Event()))
    await sending.endpoint(hooks.url)
    await sending.publish()
    worker = sending.worker()
    await worker.run_once()
    await hooks.count(1)
    await worker.drain(0.05)
    [row] = await sending.rows()
    assert (row["state"], row["claim_token"]) == ("pending", None)
    assert await worker.run_once() == 0
    assert await sending.attempt(sending.worker("next")) == 1
    assert await sending.states() == ["delivered"]


async def test_an_endpoint_that_fails_for_five_days_is_disabled(sending: Sending, hooks: Receiver):
    hooks.usual = status(500)
    await sending.endpoint(hooks.url)
    await sending.publish()
    worker = sending.worker()
    await sending.attempt(worker)
    sending.clock.advance(timedelta(days=5).total_seconds() - 1)
    await sending.publish(2)
    await sending.attempt(worker)
    assert (await sending.endpoint_row())["enabled"]
    sending.clock.advance(1)
    await sending.publish(3)
    await sending.attempt(worker)
    row = await sending.endpoint_row()
    assert (row["enabled"], row["disabled_reason"]) == (False, FAILED_REASON)
    sending.clock.advance(86_400)
    assert await sending.attempt(worker) == 0  # what waits is sent to nobody
    assert await sending.publish(5) == 0
    assert await sending.deliveries.bury_deliveries_of_disabled() == 3
    assert set(await sending.states()) == {"dead_lettered"}


async def test_one_success_starts_the_five_days_again(sending: Sending, hooks: Receiver):
    hooks.answers += [status(500), status(204), status(500)]
    await sending.endpoint(hooks.url)
    worker = sending.worker()
    for number in (1, 2, 3):
        await sending.publish(number)
        await sending.attempt(worker)
        sending.clock.advance(timedelta(days=3).total_seconds())
    assert (await sending.endpoint_row())["enabled"]


async def test_the_endpoint_may_be_deleted_while_it_is_called(sending: Sending, hooks: Receiver):
    release = asyncio.Event()
    hooks.answers.append(silence(release))
    await sending.endpoint(hooks.url)
    await sending.publish()
    worker = sending.worker()
    await worker.run_once()
    await hooks.count(1)
    await sending.database.execute("DELETE FROM webhooks.endpoints")
    release.set()
    await worker.settled()
    assert await sending.rows() == []


async def test_old_deliveries_are_forgotten_delivered_ones_first(sending: Sending, hooks: Receiver):
    hooks.answers += [status(204), status(410)]
    await sending.endpoint(hooks.url)
    await sending.publish(2)
    await sending.attempt()
    for days, left in ((6.9, 2), (0.2, 1), (22.8, 1), (0.2, 0)):
        sending.clock.advance(timedelta(days=days).total_seconds())
        await sending.deliveries.forget()
        assert len(await sending.rows()) == left
