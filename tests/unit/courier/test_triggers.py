from __future__ import annotations

from typing import Any

import pytest

from butlers.clock import ManualClock
from butlers.courier.config import parse_config
from butlers.courier.queue import MemoryQueue
from butlers.courier.service import Courier
from butlers.courier.views import Views

JEN, ARCHITECT = "agents/jen/outbox", "agents/architect/inbox"
NOTIFY = """
triggers:
  - id: jen.log
    when: {type: sprint.log, from: agents/jen/outbox}
    do: [{action: notify, to: agents/architect/inbox, payload: {title: "Jen: ${env.payload.title}", ref: "${env.id}"}}]
    limits: {cooldownMs: 5000}
"""


def envelope(id: str, **more: Any) -> dict[str, Any]:
    given = {"type": "sprint.log", "from": JEN, "to": JEN, "payload": {"title": "done"}, **more}
    return {"id": id, "ts": "2026-01-01T00:00:00Z", **given}


class Rig:
    def __init__(self, config: str) -> None:
        self.clock = ManualClock()
        self.events: list[tuple[str, str]] = []
        parsed, views = parse_config(config, source="test"), Views("e1")
        self.queue = MemoryQueue(parsed, clock=self.clock, epoch="e1", inserted=views.insert)

        def observe(event: str, stream: str, _id: str, _details: object) -> None:
            self.events.append((event, stream))

        self.courier = Courier(parsed, self.queue, views, clock=self.clock, epoch="e1", observe=observe)

    def got(self, stream: str) -> list[dict[str, Any]]:
        """What is queued there."""
        if stream not in self.queue.core.streams():
            return []
        streams = dict(self.queue.core.stored())
        return [one.envelope for one in streams[stream].groups["default"].items.values()]


@pytest.mark.parametrize(
    ("when", "fits", "fails"),
    [
        ("{to: agents/jen/outbox}", {}, {"to": "agents/tom/outbox"}),
        ("{to: 'agents/*/outbox'}", {}, {"to": "agents/jen/inbox"}),
        ("{from: agents/jen/outbox}", {}, {"from": "agents/tom/outbox"}),
        ("{type: sprint.log}", {}, {"type": "sprint.plan"}),
        ("{tags: [a, b]}", {"tags": ["b", "c", "a"]}, {"tags": ["a"]}),
        ("{headers: {priority: high}}", {"headers": {"priority": "high"}}, {"headers": {"priority": "low"}}),
        ("{headers: {trace: null}}", {"headers": {"trace": "x"}}, {"headers": {}}),
        ("{type: sprint.log, tags: [a]}", {"tags": ["a"]}, {"tags": ["a"], "type": "x"}),
    ],
)
async def test_a_rule_runs_when_every_condition_holds(when: str, fits: dict[str, Any], fails: dict[str, Any]):
    rig = Rig(f"triggers: [{{id: r, when: {when}, do: [{{action: notify, to: {ARCHITECT}}}]}}]")
    await rig.courier.enqueue(envelope("no", **fails))
    assert rig.got(ARCHITECT) == []
    await rig.courier.enqueue(envelope("yes", **fits))
    assert [one["corr"] for one in rig.got(ARCHITECT)] == ["yes"]


async def test_notify_sends_a_message_with_values_of_the_one_that_came():
    rig = Rig(NOTIFY)
    await rig.courier.enqueue(envelope("e-1"))
    (sent,) = rig.got(ARCHITECT)
    assert sent["payload"] == {"title": "Jen: done", "ref": "e-1"}
    assert (sent["from"], sent["to"], sent["type"]) == ("courier", ARCHITECT, "courier.notify")
    assert ("trigger.run", JEN) in rig.events


async def test_a_value_is_not_read_as_a_template_and_a_missing_one_is_empty():
    rig = Rig(NOTIFY.replace('"${env.id}"', '"${env.payload}"').replace("Jen:", "Jen: ${env.nothing.here}"))
    await rig.courier.enqueue(envelope("e-1", payload={"title": "${env.id} ${env.payload.title}"}))
    (sent,) = rig.got(ARCHITECT)
    assert sent["payload"]["title"] == "Jen:  ${env.id} ${env.payload.title}"
    assert sent["payload"]["ref"] == {"title": "${env.id} ${env.payload.title}"}  # a whole value keeps its type


async def test_a_cooldown_holds_a_storm_down_to_one():
    rig = Rig(NOTIFY)
    for number in range(100):
        await rig.courier.enqueue(envelope(f"e-{number}"))
    assert len(rig.got(ARCHITECT)) == 1
    rig.clock.advance(4.9)
    await rig.courier.enqueue(envelope("early"))
    rig.clock.advance(0.1)
    await rig.courier.enqueue(envelope("late"))
    assert [one["corr"] for one in rig.got(ARCHITECT)] == ["e-0", "late"]
    assert rig.courier.triggers.suppressed == {"jen.log": 100}


async def test_rules_that_answer_each_other_end():
    rig = Rig(
        """
triggers:
  - {id: ping, when: {to: agents/jen/inbox}, do: [{action: notify, to: agents/architect/inbox}]}
  - {id: pong, when: {to: agents/architect/inbox}, do: [{action: notify, to: agents/jen/inbox}]}
  - {id: self, when: {to: agents/loop/inbox}, do: [{action: notify, to: agents/loop/inbox}]}
"""
    )
    await rig.courier.enqueue(envelope("a", to="agents/jen/inbox"))
    await rig.courier.enqueue(envelope("b", to="agents/loop/inbox"))
    assert len(rig.got("agents/jen/inbox")) == 2  # the one that came, and the one answer
    assert len(rig.got(ARCHITECT)) == 1
    assert len(rig.got("agents/loop/inbox")) == 2


async def test_a_duplicate_sets_off_nothing():
    rig = Rig(NOTIFY)
    await rig.courier.enqueue(envelope("e-1"))
    rig.clock.advance(10)
    assert (await rig.courier.enqueue(envelope("e-1"))).duplicate
    assert len(rig.got(ARCHITECT)) == 1


async def test_route_copies_and_enrich_adds_before_the_message_is_queued():
    rig = Rig(
        """
triggers:
  - id: add
    when: {type: sprint.log}
    do: [{action: enrich, tags: [seen], headers: {priority: high, team: x}, payload: {by: "${env.from}", title: no}}]
  - {id: copy, when: {tags: [seen]}, do: [{action: route, to: audit/log}]}
"""
    )
    await rig.courier.enqueue(envelope("e-1", headers={"priority": "low"}))
    (queued,) = rig.got(JEN)
    assert queued["tags"] == ["seen"]
    assert queued["headers"] == {"priority": "low", "team": "x"}  # what the producer says stays
    assert queued["payload"] == {"by": JEN, "title": "done"}
    (copy,) = rig.got("audit/log")
    assert (copy["payload"], copy["corr"], copy["to"]) == (queued["payload"], "e-1", "audit/log")
    assert copy["id"] != "e-1"


async def test_a_rule_whose_target_is_full_leaves_the_message_accepted():
    rig = Rig("streams: {perStreamCaps: {'agents/architect/*': {maxDepth: 1}}}\n" + NOTIFY)
    await rig.courier.enqueue(envelope("x", to=ARCHITECT, **{"from": "agents/tom"}))
    assert not (await rig.courier.enqueue(envelope("e-1"))).duplicate
    assert ("trigger.fail", JEN) in rig.events
    assert len(rig.got(JEN)) == 1


async def test_explain_says_why_and_changes_nothing():
    rig = Rig(NOTIFY)
    assert rig.courier.explain(envelope("a", type="other")) == [
        {"rule": "jen.log", "fits": False, "because": "type is not sprint.log"}
    ]
    await rig.courier.enqueue(envelope("e-1"))
    (explained,) = rig.courier.explain(envelope("b"))
    assert explained["fits"]
    assert explained["cooldownLeftMs"] == 5000
    assert explained["would"][0]["payload"] == {"title": "Jen: done", "ref": "b"}
    assert len(rig.got(ARCHITECT)) == 1
