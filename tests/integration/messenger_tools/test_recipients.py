"""Who is not written to."""

from __future__ import annotations

import pytest

from butlers.errors import ValidationError
from tests.integration.messenger_tools.stored_state import HEALTH, START, SWITCHBOARD, StoredState


async def test_a_recipient_is_suppressed_and_released(state: StoredState):
    answer = await state.call("recipient_suppress", channel="telegram", target=" 7 ", reason="asked us to stop")
    assert answer["recipient"] == {
        "channel": "telegram",
        "target": "7",
        "rule": "suppressed",
        "moved_to": None,
        "reason": "asked us to stop",
        "decided_by": "ann",
        "since": "2026-03-01T12:00:00Z",
    }
    assert (await state.call("recipient_list"))["recipients"] == [answer["recipient"]]
    released = await state.call("recipient_release", SWITCHBOARD, channel="telegram", target="7", decided_by="bob")
    assert (released["released"]["target"], released["released_by"]) == ("7", "bob")
    assert (await state.call("recipient_list"))["recipients"] == []
    with pytest.raises(ValidationError, match="no such recipient"):
        await state.call("recipient_release", channel="telegram", target="7")


async def test_a_person_overrules_what_the_provider_said(state: StoredState):
    moved = {"channel": "telegram", "target": "7", "rule": "moved", "moved_to": "-1007", "reason": "migrated"}
    await state.insert("recipient_rules", moved | {"decided_by": "provider", "since": START})
    [seen] = (await state.call("recipient_list", channel="telegram"))["recipients"]
    assert (seen["rule"], seen["moved_to"]) == ("moved", "-1007")
    answer = await state.call("recipient_suppress", channel="telegram", target="7", reason="no more")
    assert (answer["recipient"]["rule"], answer["recipient"]["moved_to"]) == ("suppressed", None)


async def test_the_list_is_paged_by_channel_and_address(state: StoredState):
    for channel, target in (("telegram", "9"), ("email", "a/b@example.org"), ("telegram", "10"), ("email", "z@x.org")):
        await state.call("recipient_suppress", channel=channel, target=target, reason="x")
    seen, cursor = [], None
    while True:
        page = await state.call("recipient_list", limit=1, **({"cursor": cursor} if cursor else {}))
        seen += [(row["channel"], row["target"]) for row in page["recipients"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == sorted(seen)
    assert len(seen) == 4
    assert len((await state.call("recipient_list", channel="email"))["recipients"]) == 2
    with pytest.raises(ValidationError, match="cursor"):
        await state.call("recipient_list", cursor="page-2")


async def test_a_butler_may_look_and_not_decide(state: StoredState):
    assert (await state.call("recipient_list", HEALTH))["recipients"] == []
    for tool, reason in (("recipient_suppress", {"reason": "x"}), ("recipient_release", {})):
        with pytest.raises(ValidationError, match="may not call"):
            await state.call(tool, HEALTH, channel="telegram", target="7", **reason)
