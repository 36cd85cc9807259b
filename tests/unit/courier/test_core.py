"""The rules of the queues, one by one; `test_core_machine` mixes them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from butlers.clock import ManualClock
from butlers.courier.core import QueueCore
from butlers.courier.errors import InvalidEnvelope, LeaseConflict, StreamClosed, StreamFull, UnknownStream
from butlers.courier.messages import Delivery, Overflow, StreamPolicy

INBOX = "agents/jen/inbox"


def envelope(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "ts": "2026-01-01T00:00:00Z", "to": INBOX, "type": "note", "payload": {}, **more}


class Rig:
    """A core with a clock that the test moves, and subscribers that remember what they got."""

    def __init__(self, **policy: Any) -> None:
        self.clock = ManualClock()
        self.core = QueueCore(clock=self.clock, policy_of=lambda _: StreamPolicy(**policy))
        self.got: dict[str, list[Delivery]] = {}

    def subscribe(self, name: str, *, credit: int = 0, stream: str = INBOX, group: str = "default") -> str:
        self.got[name] = []
        self.core.subscribe(stream, deliver=self.got[name].append, id=name, group=group)
        if credit:
            self.core.grant(name, credit)
        return name

    def send(self, *ids: str, stream: str = INBOX, partition: str | None = None, **more: Any) -> None:
        for id in ids:
            self.core.enqueue(stream, envelope(id, **more), partition=partition)

    def ids(self, name: str) -> list[str]:
        return [delivery.id for delivery in self.got[name]]

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.core.run_due()

    def audit(self, group: str = "default", stream: str = INBOX) -> dict[str, Any]:
        audit = self.core.audit(stream)
        assert audit["balanced"]
        found: dict[str, Any] = audit["groups"][group]
        return found


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.scenario("C2-002")
def test_a_stream_is_a_fifo(rig: Rig):
    rig.send("a", "b", "c")
    rig.subscribe("jen", credit=2)
    rig.send("d")
    rig.core.grant("jen", 5)
    assert rig.ids("jen") == ["a", "b", "c", "d"]


@pytest.mark.scenario("C2-004")
def test_nothing_is_delivered_without_credit_and_a_grant_resumes(rig: Rig):
    rig.subscribe("jen")
    rig.send("a", "b", "c")
    assert rig.ids("jen") == []
    rig.core.grant("jen", 2)
    assert rig.ids("jen") == ["a", "b"]
    rig.core.ack("jen", "a")
    assert rig.ids("jen") == ["a", "b"]  # an ack is no credit
    rig.core.grant("jen", 1)
    assert rig.ids("jen") == ["a", "b", "c"]


@pytest.mark.parametrize("credit", [0, -1, 1.5, True, "3", None, 1_000_001])
def test_credit_is_a_whole_number_above_zero(rig: Rig, credit: Any):
    rig.subscribe("jen")
    rig.send("a")
    with pytest.raises(InvalidEnvelope):
        rig.core.grant("jen", credit)
    assert rig.ids("jen") == []


def test_a_second_subscriber_shares_the_stream(rig: Rig):
    rig.subscribe("one", credit=2)
    rig.subscribe("two", credit=2)
    rig.send("a", "b", "c", "d")
    assert sorted(rig.ids("one") + rig.ids("two")) == ["a", "b", "c", "d"]
    assert len(rig.ids("one")) == len(rig.ids("two")) == 2


def test_a_thousand_subscribers_with_credit_one_are_served_alike(rig: Rig):
    names = [rig.subscribe(f"s{number}", credit=1) for number in range(1_000)]
    for number in range(5_000):
        rig.send(f"m{number}")
        name = next(name for name in names if rig.got[name] and rig.got[name][-1].id == f"m{number}")
        rig.core.ack(name, f"m{number}")
        rig.core.grant(name, 1)
    assert Counter(len(rig.got[name]) for name in names) == {5: 1_000}


@pytest.mark.scenario("C2-005")
@pytest.mark.scenario("C2-008")
def test_a_delivery_is_leased_and_comes_again_when_the_lease_expires(rig: Rig):
    rig.subscribe("jen", credit=1)
    rig.subscribe("tom", credit=1)
    rig.send("a")
    assert rig.audit()["leased"] == 1
    assert rig.core.next_due == 30.0
    rig.pass_time(29.9)
    assert rig.ids("tom") == []
    rig.pass_time(0.1)
    assert rig.ids("tom") == ["a"]  # pushed, not only queued
    first, second = rig.got["jen"][0], rig.got["tom"][0]
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.lease != second.lease


@pytest.mark.scenario("C2-006")
def test_an_ack_removes_the_lease_and_a_second_one_is_a_conflict(rig: Rig):
    rig.subscribe("jen", credit=2)
    rig.send("a")
    rig.core.ack("jen", "a")
    assert (rig.audit()["acked"], rig.audit()["leased"]) == (1, 0)
    with pytest.raises(LeaseConflict):
        rig.core.ack("jen", "a")
    rig.pass_time(60)
    assert rig.ids("jen") == ["a"]


def test_the_ack_of_an_earlier_holder_is_refused(rig: Rig):
    rig.subscribe("jen", credit=2)
    rig.send("a")
    old = rig.got["jen"][0]
    rig.pass_time(30)
    new = rig.got["jen"][1]
    with pytest.raises(LeaseConflict):
        rig.core.ack("jen", "a", lease=old.lease)
    rig.core.ack("jen", "a", lease=new.lease)
    assert rig.audit()["acked"] == 1


def test_one_subscriber_cannot_settle_what_another_holds(rig: Rig):
    rig.subscribe("jen", credit=1)
    rig.subscribe("tom")
    rig.send("a")
    for settle in (rig.core.ack, rig.core.nack, rig.core.extend):
        with pytest.raises(LeaseConflict):
            settle("tom", "a")
        with pytest.raises(LeaseConflict):
            settle("tom", "a", lease=rig.got["jen"][0].lease)
    assert rig.audit()["leased"] == 1


@pytest.mark.scenario("C2-007")
def test_a_nack_queues_at_the_tail_at_once_or_after_its_delay(rig: Rig):
    rig.subscribe("jen", credit=1)
    rig.send("a", "b")
    rig.core.nack("jen", "a")
    rig.core.grant("jen", 1)
    assert rig.ids("jen") == ["a", "b"]
    rig.core.nack("jen", "b", delay_s=5)
    rig.core.grant("jen", 10)
    assert rig.ids("jen") == ["a", "b", "a"]
    assert rig.audit()["delayed"] == 1
    rig.pass_time(5)
    assert rig.ids("jen") == ["a", "b", "a", "b"]


@pytest.mark.parametrize("delay_s", [-1, float("nan"), float("inf"), 8 * 86_400])
def test_a_delay_has_bounds(rig: Rig, delay_s: float):
    rig.subscribe("jen", credit=1)
    rig.send("a")
    with pytest.raises(InvalidEnvelope):
        rig.core.nack("jen", "a", delay_s=delay_s)
    assert rig.audit()["leased"] == 1


def test_the_three_meanings_of_a_nack():
    rig = Rig(max_deliveries=2)
    rig.subscribe("jen", credit=100)
    rig.send("released", "failing", "poison")
    for _ in range(5):
        rig.core.nack("jen", "released", meaning="release")
    assert rig.core.dead(INBOX) == []
    rig.core.nack("jen", "failing")
    rig.core.nack("jen", "failing", reason="no such account")
    rig.core.nack("jen", "poison", meaning="poison")
    dead = {one.id: (one.reason, one.failures) for _, one in rig.core.dead(INBOX)}
    assert dead == {"failing": ("no such account", 2), "poison": ("a subscriber called it poison", 0)}


def test_too_many_expired_leases_end_among_the_dead_and_can_be_replayed_or_discarded():
    rig = Rig(max_deliveries=3)
    rig.subscribe("jen", credit=100)
    rig.send("a", "b")
    for _ in range(3):
        rig.pass_time(30)
    assert [one.id for _, one in rig.core.dead(INBOX)] == ["a", "b"]
    assert rig.core.replay(INBOX, ["a"]) == 1
    assert rig.got["jen"][-1].attempt == 1
    rig.core.ack("jen", "a")
    assert rig.core.discard(INBOX) == 1
    with pytest.raises(LeaseConflict):
        rig.core.replay(INBOX, ["b"])
    audit = rig.audit()
    assert (audit["acked"], audit["dead"], audit["discarded"]) == (1, 0, 1)


def test_more_dead_messages_than_are_kept_are_counted_as_dropped():
    rig = Rig(max_dead=2)
    rig.subscribe("jen", credit=3)
    rig.send("a", "b", "c")
    for id in "abc":
        rig.core.nack("jen", id, meaning="poison")
    assert [one.id for _, one in rig.core.dead(INBOX)] == ["b", "c"]
    assert rig.audit()["dropped"] == 1


def test_a_subscriber_that_goes_away_gives_back_at_once(rig: Rig):
    rig.subscribe("jen", credit=5)
    rig.send("a", "b")
    rig.subscribe("tom", credit=5)
    rig.core.unsubscribe("jen")
    assert rig.ids("tom") == ["a", "b"]
    rig.send("c")
    assert rig.ids("jen") == ["a", "b"]


def test_an_extended_lease_expires_later(rig: Rig):
    rig.subscribe("jen", credit=2)
    rig.send("a")
    rig.pass_time(20)
    assert rig.core.extend("jen", "a", lease_s=100.0) == 100.0
    rig.pass_time(99)
    assert rig.ids("jen") == ["a"]
    rig.pass_time(1)
    assert rig.ids("jen") == ["a", "a"]


@pytest.mark.scenario("C2-009")
def test_a_repeat_within_the_recent_ids_is_taken_once_also_after_its_ack():
    rig = Rig(recent_ids=3)
    rig.subscribe("jen", credit=10)
    rig.send("a")
    assert rig.core.enqueue(INBOX, envelope("a")).duplicate
    rig.core.ack("jen", "a")
    assert rig.core.enqueue(INBOX, envelope("a")).duplicate
    rig.send("b", "c", "d")
    assert not rig.core.enqueue(INBOX, envelope("a")).duplicate
    assert rig.core.enqueue(INBOX, envelope("b")).duplicate  # fell out of the window, and is not settled yet
    assert rig.ids("jen") == ["a", "b", "c", "d", "a"]
    assert rig.audit()["accepted"] == 5


def test_a_dead_id_is_taken_no_second_time():
    rig = Rig(recent_ids=1)
    rig.subscribe("jen", credit=10)
    rig.send("a")
    rig.core.nack("jen", "a", meaning="poison")
    rig.send("b")
    assert rig.core.enqueue(INBOX, envelope("a")).duplicate
    rig.core.discard(INBOX)
    assert not rig.core.enqueue(INBOX, envelope("a")).duplicate
    assert rig.audit()["accepted"] == 3


def test_a_full_stream_rejects_with_the_time_to_come_back():
    rig = Rig(max_depth=2)
    rig.subscribe("jen", credit=1)
    rig.send("a", "b")
    with pytest.raises(StreamFull) as refused:
        rig.send("c")
    assert refused.value.retry_after is not None
    assert refused.value.retry_after > 0
    rig.core.ack("jen", "a")
    rig.send("c")  # a rejected id is not remembered
    assert rig.core.stats(INBOX)["counts"]["rejected"] == 1


@pytest.mark.parametrize(
    ("overflow", "place"), [(Overflow.DROP_OLDEST, "dropped"), (Overflow.DEAD_LETTER_OLDEST, "dead")]
)
def test_a_full_stream_lets_the_oldest_go_and_counts_it(overflow: Overflow, place: str):
    rig = Rig(max_depth=2, overflow=overflow)
    rig.send("a", "b", "c")
    assert rig.audit()[place] == 1
    rig.subscribe("jen", credit=2)
    assert rig.ids("jen") == ["b", "c"]
    with pytest.raises(StreamFull):
        rig.send("d")  # everything is in the hands of a subscriber


def test_a_message_that_one_group_refuses_is_dropped_by_none():
    rig = Rig(max_depth=2, overflow=Overflow.DROP_OLDEST)
    rig.subscribe("queues", group="work")
    rig.subscribe("holds", group="audit", credit=9)
    rig.send("a", "b")
    with pytest.raises(StreamFull):
        rig.send("c")
    assert rig.audit("work")["dropped"] == 0
    assert rig.audit("work")["queued"] == 2


@pytest.mark.scenario("C2-003")
def test_messages_of_one_partition_are_delivered_one_after_the_other(rig: Rig):
    rig.subscribe("jen", credit=10)
    rig.subscribe("tom", credit=10)
    rig.send("a1", "a2", "a3", partition="a")
    rig.send("b1", partition="b")
    rig.send("free")
    seen = rig.ids("jen") + rig.ids("tom")
    assert sorted(seen) == ["a1", "b1", "free"]
    holder = "jen" if "a1" in rig.ids("jen") else "tom"
    rig.core.nack(holder, "a1", delay_s=5)  # its turn stays its own
    assert "a2" not in rig.ids("jen") + rig.ids("tom")
    rig.pass_time(5)
    holder = "jen" if rig.ids("jen")[-1] == "a1" else "tom"
    rig.core.ack(holder, "a1")
    assert "a2" in rig.ids("jen") + rig.ids("tom")
    assert "a3" not in rig.ids("jen") + rig.ids("tom")


def test_a_higher_priority_goes_first_and_a_low_one_does_not_wait_for_ever():
    rig = Rig(ageing_s=60.0)
    rig.send("low", headers={"priority": "low"})
    rig.send("normal")
    rig.send("high", headers={"priority": "high"})
    rig.clock.advance(200)
    rig.send("late", headers={"priority": "high"})
    rig.subscribe("jen", credit=10)
    assert rig.ids("jen") == ["high", "normal", "low", "late"]


def test_every_group_gets_every_message_and_the_first_one_what_was_queued(rig: Rig):
    rig.send("a")
    rig.subscribe("worker", credit=10, group="work")
    rig.subscribe("auditor", credit=10, group="audit")
    rig.send("b")
    assert rig.ids("worker") == ["a", "b"]
    assert rig.ids("auditor") == ["b"]
    rig.core.ack("worker", "b")
    assert rig.audit("work")["acked"] == 1
    assert rig.audit("audit")["leased"] == 1


def test_a_pattern_takes_from_streams_of_today_and_tomorrow_in_turn(rig: Rig):
    rig.send("a1", "a2", stream="agents/ann/inbox")
    rig.subscribe("all", stream="agents/*/inbox")
    rig.send("b1", "b2", stream="agents/bob/inbox")
    rig.send("no", stream="agents/bob/outbox")
    for _ in range(4):
        rig.core.grant("all", 1)
    assert sorted(rig.ids("all")) == ["a1", "a2", "b1", "b2"]
    assert {delivery.stream for delivery in rig.got["all"][:2]} == {"agents/ann/inbox", "agents/bob/inbox"}
    rig.core.ack("all", "a1")
    rig.core.ack("all", "b1", stream="agents/bob/inbox")


def test_an_id_in_two_streams_of_a_pattern_needs_the_stream(rig: Rig):
    rig.subscribe("all", stream="agents/*", credit=10)
    rig.send("x", stream="agents/ann")
    rig.send("x", stream="agents/bob/inbox")
    with pytest.raises(LeaseConflict):
        rig.core.ack("all", "x")
    rig.core.ack("all", "x", stream="agents/ann")
    rig.core.ack("all", "x")


def test_a_paused_stream_accepts_and_a_draining_one_delivers(rig: Rig):
    rig.subscribe("jen", credit=10)
    rig.core.pause(INBOX)
    rig.send("a")
    assert rig.ids("jen") == []
    rig.core.resume(INBOX)
    assert rig.ids("jen") == ["a"]
    rig.core.drain(INBOX)
    with pytest.raises(StreamClosed):
        rig.send("b")
    rig.core.ack("jen", "a")
    assert rig.core.stats(INBOX)["depth"] == 0


def test_a_subscriber_may_ack_within_the_delivery(rig: Rig):
    core = rig.core

    def take(delivery: Delivery) -> None:
        core.ack("eager", delivery.id, lease=delivery.lease)
        core.grant("eager", 1)

    core.subscribe(INBOX, deliver=take, id="eager")
    rig.send(*(f"m{number}" for number in range(5_000)))
    rig.send(*(f"p{number}" for number in range(5_000)), partition="one")
    core.grant("eager", 1)
    assert rig.audit()["acked"] == 10_000


def test_an_unknown_stream_and_hostile_names_are_refused(rig: Rig):
    for ask in (rig.core.stats, rig.core.audit, rig.core.dead, rig.core.pause):
        with pytest.raises(UnknownStream):
            ask("agents/none/inbox")
    for name in ("", "/", "a//b", "a/", "a/$dead", "a b", "é", "a\n", "x" * 300, "a/*"):
        with pytest.raises(InvalidEnvelope):
            rig.core.enqueue(name, envelope("a"))
    assert rig.core.streams() == []


@pytest.mark.scenario("C2-010")
def test_the_six_calls_of_the_core_and_its_statistics(rig: Rig):
    assert [rig.core.enqueue(INBOX, envelope(id)).id for id in "abc"] == ["a", "b", "c"]
    rig.clock.advance(0.25)
    jen = rig.core.subscribe(INBOX, deliver=rig.got.setdefault("jen", []).append)
    assert rig.core.grant(jen, 1) == 1
    stats = rig.core.stats(INBOX)
    assert (stats["depth"], stats["inflight"], stats["lastTs"]) == (2, 1, "2026-01-01T00:00:00Z")
    assert (stats["subscribers"], stats["busy"]) == (1, 1)
    assert stats["latP50"] == stats["latP95"] == 250.0
    assert (stats["rateIn"], stats["rateOut"]) == (3.0, 1.0)
    rig.core.ack(jen, "a")
    rig.core.grant(jen, 1)
    rig.core.nack(jen, "b")
    counts = rig.core.stats(INBOX)["counts"]
    assert (counts["accepted"], counts["acked"], counts["nacked"]) == (3, 1, 1)
    assert rig.core.stats(INBOX)["depth"] == 2
    rig.clock.advance(60)
    assert rig.core.stats(INBOX)["rateIn"] == 0.0  # of the last seconds, not of a lifetime
