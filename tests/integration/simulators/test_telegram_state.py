"""The simulated world itself, without HTTP: numbers, offsets, chats, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from butlers.channels.telegram.simulator.control import migrate, set_blocked
from butlers.channels.telegram.simulator.methods import ALLOWED_REACTIONS
from butlers.channels.telegram.simulator.model import ApiError, User
from butlers.channels.telegram.simulator.state import SimulatedTelegram, fetch
from butlers.clock import ManualClock
from butlers.errors import ValidationError
from tests.integration.simulators.telegram_support import TOKEN, calls, says

GROUP, SUPERGROUP = -77, -1_000_000_000_077
ANN = User(id=5, first_name="Ann")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def telegram(clock: ManualClock) -> SimulatedTelegram:
    telegram = SimulatedTelegram(clock=clock)
    telegram.add_bot(TOKEN, "unit_bot")
    return telegram


def refused(do: Callable[[], Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        do()
    return caught.value


def update_ids(telegram: SimulatedTelegram, offset: int = 0, limit: int = 100) -> list[int]:
    return [update.update_id for update in fetch(telegram, telegram.state.bots[42], offset, limit)]


class Offsets(RuleBasedStateMachine):
    """getUpdates against a plain list: nothing is lost before it is confirmed, nothing comes back after."""

    def __init__(self) -> None:
        super().__init__()
        self.telegram = SimulatedTelegram(clock=ManualClock())
        self.telegram.add_bot(TOKEN, "unit_bot")
        self.model: list[int] = []

    @rule()
    def user_writes(self) -> None:
        posted = says(self.telegram, "hello")
        assert posted.update is not None
        self.model.append(posted.update.update_id)

    @rule(limit=st.integers(1, 4))
    def look(self, limit: int) -> None:
        assert update_ids(self.telegram, 0, limit) == self.model[:limit]

    @rule(back=st.integers(0, 5), limit=st.integers(1, 4))
    def confirm(self, back: int, limit: int) -> None:
        offset = self.telegram.state.bots[42].next_update_id - back
        self.model = [update_id for update_id in self.model if update_id >= offset]
        assert update_ids(self.telegram, offset, limit) == self.model[:limit]

    @rule(last=st.integers(1, 4))
    def only_the_last(self, last: int) -> None:
        self.model = self.model[-last:]
        assert update_ids(self.telegram, -last) == self.model

    @rule(beyond=st.integers(11, 1000))
    def an_offset_from_before_a_renumbering_confirms_nothing(self, beyond: int) -> None:
        assert update_ids(self.telegram, self.telegram.state.bots[42].next_update_id + beyond) == self.model

    @invariant()
    def numbers_increase(self) -> None:
        assert self.model == sorted(set(self.model))


Offsets.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestOffsets = Offsets.TestCase


def test_updates_are_kept_for_a_day(telegram: SimulatedTelegram, clock: ManualClock) -> None:
    says(telegram, "old")
    clock.advance(20 * 3600)
    newer = says(telegram, "newer").update
    clock.advance(5 * 3600)
    assert newer is not None
    assert update_ids(telegram) == [newer.update_id]


def test_after_a_silent_week_updates_are_numbered_anew(telegram: SimulatedTelegram, clock: ManualClock) -> None:
    first = says(telegram, "before").update
    clock.advance(8 * 24 * 3600)
    second, third = says(telegram, "after").update, says(telegram, "and on").update
    assert first is not None and second is not None and third is not None
    assert second.update_id not in (first.update_id, first.update_id + 1)
    assert third.update_id == second.update_id + 1


def test_only_the_kinds_asked_for_are_queued(telegram: SimulatedTelegram) -> None:
    calls(telegram, "setWebhook", url="http://127.0.0.1:1/", allowed_updates=["edited_message"])
    posted = says(telegram, "first")
    assert posted.update is None
    edited = says(telegram, "second", edit_of=posted.message.message_id)
    assert edited.update is not None and edited.update.kind == "edited_message"


def test_an_edit_is_a_new_update_with_the_same_message_id(telegram: SimulatedTelegram) -> None:
    first = says(telegram, "helo")
    second = says(telegram, "hello", edit_of=first.message.message_id)
    assert first.update is not None and second.update is not None
    assert second.update.update_id == first.update.update_id + 1
    assert second.update.body["message_id"] == first.update.body["message_id"]
    assert (first.update.body["text"], second.update.body["text"]) == ("helo", "hello")
    assert "edit_date" in second.update.body and "edit_date" not in first.update.body


def test_private_chats_share_one_count_and_supergroups_have_their_own(telegram: SimulatedTelegram) -> None:
    ids = [says(telegram, "x", user_id).message.message_id for user_id in (5, 6, 5)]
    group = [says(telegram, "x", chat_id=SUPERGROUP, sender=ANN).message.message_id for _ in range(2)]
    assert (ids, group) == ([1, 2, 3], [1, 2])


def test_a_chat_never_seen_is_opened_unless_chats_are_strict(telegram: SimulatedTelegram) -> None:
    assert calls(telegram, "sendMessage", chat_id=99, text="hi")["chat"]["type"] == "private"
    telegram.commit({"change": "settings_changed", "settings": {"strict_chats": True}})
    assert calls(telegram, "sendMessage", chat_id=99, text="still open")["message_id"] == 2
    error = refused(lambda: calls(telegram, "sendMessage", chat_id=100, text="hi"))
    assert (error.code, error.description) == (400, "Bad Request: chat not found")


@pytest.mark.parametrize(
    ("params", "description"),
    [
        ({"text": "x"}, "Bad Request: chat_id is empty"),
        ({"chat_id": "@nobody", "text": "x"}, "Bad Request: chat not found"),
        ({"chat_id": 5}, "Bad Request: message text is empty"),
        ({"chat_id": 5, "text": " \n "}, "Bad Request: message text is empty"),
        ({"chat_id": 5, "text": "x", "parse_mode": "BBCode"}, "Bad Request: unsupported parse_mode"),
        ({"chat_id": 5, "text": "x", "reply_to_message_id": 9}, "Bad Request: message to be replied not found"),
        (
            {"chat_id": 5, "text": "x", "reply_parameters": '{"message_id": 9}'},
            "Bad Request: message to be replied not found",
        ),
        (
            {"chat_id": 5, "text": "x", "reply_parameters": "[1"},
            "Bad Request: can't parse reply_parameters JSON object",
        ),
    ],
)
def test_what_send_message_refuses(telegram: SimulatedTelegram, params: dict[str, Any], description: str) -> None:
    error = refused(lambda: calls(telegram, "sendMessage", **params))
    assert (error.code, error.description) == (400, description)


def test_a_reply_may_do_without_its_message_when_told_so(telegram: SimulatedTelegram) -> None:
    wish = {"message_id": 9, "allow_sending_without_reply": True}
    sent = calls(telegram, "sendMessage", chat_id=5, text="x", reply_parameters=wish)
    assert "reply_to_message" not in sent


def test_a_reply_shows_the_message_it_answers(telegram: SimulatedTelegram) -> None:
    asked = says(telegram, "why?").message
    sent = calls(telegram, "sendMessage", chat_id=5, text="so", reply_parameters={"message_id": asked.message_id})
    assert sent["reply_to_message"]["text"] == "why?"
    assert sent["from"]["is_bot"] is True


def test_a_group_that_became_a_supergroup_says_where_it_went(telegram: SimulatedTelegram) -> None:
    says(telegram, "hi", chat_id=GROUP, sender=ANN)
    moved = migrate(telegram, telegram.state.bots[42], GROUP, None)
    error = refused(lambda: calls(telegram, "sendMessage", chat_id=GROUP, text="x"))
    assert (error.code, error.parameters) == (400, {"migrate_to_chat_id": moved.id})
    assert calls(telegram, "sendMessage", chat_id=moved.id, text="x")["chat"]["type"] == "supergroup"


def test_a_user_who_blocked_the_bot_cannot_be_reached_until_unblocked(telegram: SimulatedTelegram) -> None:
    bot = telegram.state.bots[42]
    says(telegram, "hi")
    set_blocked(telegram, bot, 5, blocked=True)
    error = refused(lambda: calls(telegram, "sendMessage", chat_id=5, text="x"))
    assert (error.code, error.description) == (403, "Forbidden: bot was blocked by the user")
    with pytest.raises(ValidationError):
        says(telegram, "from behind the wall")
    set_blocked(telegram, bot, 5, blocked=False)
    calls(telegram, "sendMessage", chat_id=5, text="x")
    assert [update.kind for update in bot.pending] == ["message", "my_chat_member", "my_chat_member"]


def test_the_allowed_reactions_are_the_real_ones() -> None:
    assert {"👀", "👍", "👌", "👾"} <= ALLOWED_REACTIONS
    assert "✅" not in ALLOWED_REACTIONS
    assert len(ALLOWED_REACTIONS) == 73


def test_a_reaction_is_set_replaced_and_cleared(telegram: SimulatedTelegram) -> None:
    message = says(telegram, "hi").message

    def react(*emoji: str) -> str | None:
        reaction = [{"type": "emoji", "emoji": one} for one in emoji]
        calls(telegram, "setMessageReaction", chat_id=5, message_id=message.message_id, reaction=reaction)
        return telegram.state.bots[42].chats[5].messages[message.message_id].reaction

    assert (react("👀"), react("👍"), react()) == ("👀", "👍", None)
    assert refused(lambda: react("✅")).description == "Bad Request: REACTION_INVALID"
    assert refused(lambda: react("👀", "👍")).code == 400
    error = refused(lambda: calls(telegram, "setMessageReaction", chat_id=5, message_id=99, reaction=[]))
    assert error.description == "Bad Request: message to react not found"


def test_a_bot_edits_and_deletes_only_what_is_there(telegram: SimulatedTelegram) -> None:
    asked = says(telegram, "hi").message
    sent = calls(telegram, "sendMessage", chat_id=5, text="one")
    where = {"chat_id": 5, "message_id": sent["message_id"]}
    assert calls(telegram, "editMessageText", text="two", **where)["text"] == "two"
    same = refused(lambda: calls(telegram, "editMessageText", text="two", **where))
    assert same.description.startswith("Bad Request: message is not modified")
    foreign = {"chat_id": 5, "message_id": asked.message_id}
    assert refused(lambda: calls(telegram, "editMessageText", text="x", **foreign)).code == 400
    assert calls(telegram, "deleteMessage", **where) is True
    gone = refused(lambda: calls(telegram, "deleteMessage", **where))
    assert gone.description == "Bad Request: message to delete not found"


def send_until_refused(telegram: SimulatedTelegram, chat_ids: list[int]) -> tuple[int, int]:
    for sent, chat_id in enumerate(chat_ids):
        try:
            calls(telegram, "sendMessage", chat_id=chat_id, text="x")
        except ApiError as error:
            assert error.code == 429
            return sent, error.parameters["retry_after"]
    return len(chat_ids), 0


def test_limits_are_off_until_switched_on(telegram: SimulatedTelegram) -> None:
    assert send_until_refused(telegram, [5] * 100) == (100, 0)


def test_a_chat_takes_a_burst_then_one_message_a_second(telegram: SimulatedTelegram, clock: ManualClock) -> None:
    telegram.commit({"change": "settings_changed", "settings": {"enforce_limits": True}})
    assert send_until_refused(telegram, [5] * 10) == (5, 5)
    clock.advance(5)
    assert send_until_refused(telegram, [5] * 10) == (5, 5)


def test_a_bot_sends_thirty_messages_a_second(telegram: SimulatedTelegram, clock: ManualClock) -> None:
    telegram.commit({"change": "settings_changed", "settings": {"enforce_limits": True}})
    assert send_until_refused(telegram, list(range(1, 40))) == (30, 1)
    clock.advance(1)
    assert send_until_refused(telegram, [100]) == (1, 0)


def test_a_group_takes_twenty_messages_a_minute(telegram: SimulatedTelegram, clock: ManualClock) -> None:
    telegram.commit({"change": "settings_changed", "settings": {"enforce_limits": True}})
    for _ in range(4):
        assert send_until_refused(telegram, [GROUP] * 5) == (5, 0)
        clock.advance(5)
    assert send_until_refused(telegram, [GROUP]) == (0, 40)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_what_a_user_writes_arrives_as_written(text: str) -> None:
    telegram = SimulatedTelegram(clock=ManualClock())
    telegram.add_bot(TOKEN, "unit_bot")
    if not text.strip():
        with pytest.raises(ValidationError):
            says(telegram, text)
    else:
        says(telegram, text)
        assert fetch(telegram, telegram.state.bots[42], 0, 1)[0].body["text"] == text
