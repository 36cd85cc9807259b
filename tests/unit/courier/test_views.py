from __future__ import annotations

from typing import Any

import pytest

from butlers.courier.errors import UnknownView
from butlers.courier.live import MOST_WAITING, LiveReader
from butlers.courier.views import LATEST_PER_AGENT, MOST_CHANGES, Views


def envelope(id: str) -> dict[str, Any]:
    return {"id": id}


def inserted(*pairs: tuple[str, str]) -> Views:
    views = Views("e1")
    for name, id in pairs:
        views.insert(f"agents/{name}/inbox", envelope(id))
    return views


def test_the_snapshot_holds_the_last_envelope_of_every_inbox():
    views = inserted(("jen", "a"), ("tom", "b"), ("jen", "c"))
    views.insert("agents/jen/outbox", envelope("not an inbox"))
    snapshot = views[LATEST_PER_AGENT].snapshot()
    assert snapshot["entries"] == {"agents/tom/inbox": envelope("b"), "agents/jen/inbox": envelope("c")}
    assert (snapshot["epoch"], snapshot["offset"]) == ("e1", 3)
    with pytest.raises(UnknownView):
        views["other"]


def test_a_reader_goes_on_where_it_was_or_is_told_of_the_gap():
    view = inserted(("jen", "a"), ("tom", "b"), ("jen", "c"))[LATEST_PER_AGENT]
    changes = view.since("e1", 1)
    assert changes is not None
    assert [change.offset for change in changes] == [2, 3]
    assert view.since("e1", 3) == []
    assert view.since("e0", 1) is None  # another run
    assert view.since("e1", 9) is None
    for number in range(MOST_CHANGES):
        view.insert("agents/jen/inbox", envelope(str(number)))
    assert view.since("e1", 2) is None
    assert len(view.since("e1", 3) or ()) == MOST_CHANGES


def test_a_view_forgets_the_oldest_address_and_says_so():
    view = inserted()[LATEST_PER_AGENT]
    view.most = 2
    for name in ("a", "b", "c"):
        view.insert(f"agents/{name}/inbox", envelope(name))
    assert list(view.entries) == ["agents/b/inbox", "agents/c/inbox"]
    assert [(change.key, change.envelope is None) for change in view.changes][-1] == ("agents/a/inbox", True)


async def test_a_live_reader_gets_a_snapshot_then_changes_and_a_slow_one_a_gap():
    view = inserted(("jen", "a"))[LATEST_PER_AGENT]
    with LiveReader(view, place=("", "")) as reader:
        assert (await reader.next())[0] == "snapshot"
        view.insert("agents/tom/inbox", envelope("b"))
        name, place, data = await reader.next()
        assert (name, place, data["key"], data["offset"]) == ("change", "e1:2", "agents/tom/inbox", 2)
        for number in range(MOST_WAITING + 1):
            view.insert("agents/tom/inbox", envelope(str(number)))
        name, _, gap = await reader.next()
        assert (name, gap["from"]["offset"]) == ("gap", 2)
        name, place, snapshot = await reader.next()
        assert (name, snapshot["offset"]) == ("snapshot", view.offset)
        view.insert("agents/tom/inbox", envelope("last"))
        assert (await reader.next())[1] == f"e1:{view.offset}"
    with LiveReader(view, place=("e1", str(view.offset - 1))) as reader:
        assert (await reader.next())[2]["envelope"] == envelope("last")
    with LiveReader(view, place=("e0", "5")) as reader:
        assert [(await reader.next())[0], (await reader.next())[0]] == ["gap", "snapshot"]


async def test_no_change_falls_between_finding_a_place_and_following():
    view = inserted(("jen", "a"))[LATEST_PER_AGENT]
    reader = LiveReader(view, place=("e1", "1"))
    view.insert("agents/jen/inbox", envelope("between"))
    with reader:
        assert (await reader.next())[2]["envelope"] == envelope("between")
