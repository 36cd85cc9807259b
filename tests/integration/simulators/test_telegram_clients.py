"""Two independent client libraries talk to the simulator as they would to Telegram."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from butlers.channels.telegram.simulator.model import FaultKind
from tests.integration.simulators.telegram_clients import aiogram_bot, ptb_bot, ptb_without_start
from tests.integration.simulators.telegram_support import DEADLINE, Hand, serving
from tests.lazy import LazyModule

if TYPE_CHECKING:
    import aiogram
    import telegram
else:
    aiogram, telegram = LazyModule("aiogram"), LazyModule("telegram")


@pytest.fixture
async def hand() -> AsyncIterator[Hand]:
    async with serving() as hand:
        yield hand


@pytest.fixture
async def ptb(hand: Hand) -> AsyncIterator[telegram.Bot]:
    async with ptb_bot(hand.simulator) as bot:
        yield bot


@pytest.fixture
async def aio(hand: Hand) -> AsyncIterator[aiogram.Bot]:
    async with aiogram_bot(hand.simulator) as bot:
        yield bot


async def test_ptb_converses(hand: Hand, ptb: telegram.Bot) -> None:
    me = await ptb.get_me()
    assert (me.is_bot, me.username) == (True, "butlers_sim_bot")
    waiting = asyncio.create_task(ptb.get_updates(timeout=30))
    await hand.poll_waits()
    await hand.says("hello 👋")
    async with asyncio.timeout(DEADLINE):
        (update,) = await waiting
    assert update.message is not None and update.message.text == "hello 👋"
    sent = await ptb.send_message(
        5,
        "<b>hi</b> Ann",
        parse_mode="HTML",
        reply_parameters=telegram.ReplyParameters(update.message.message_id),
    )
    assert sent.text == "hi Ann" and sent.entities[0].type == "bold"
    assert sent.reply_to_message is not None and sent.reply_to_message.text == "hello 👋"
    assert await ptb.set_message_reaction(5, update.message.message_id, "👀")
    assert await ptb.get_updates(offset=update.update_id + 1, timeout=0) == ()
    asked, answered = await hand.lines()
    assert (asked["from"], asked["reactions"]) == ("user", ["👀"])
    assert (answered["from"], answered["reply_to"]) == ("bot", asked["message_id"])


async def test_ptb_edits_deletes_and_looks_around(hand: Hand, ptb: telegram.Bot) -> None:
    sent = await ptb.send_message(5, "one")
    edited = await sent.edit_text("two")
    assert isinstance(edited, telegram.Message) and edited.edit_date is not None
    assert [(line["text"], line["edited"]) for line in await hand.lines()] == [("two", True)]
    assert (await ptb.get_chat(5)).type == "private"
    assert await ptb.send_chat_action(5, "typing")
    assert await sent.delete()
    assert await hand.lines() == []


async def test_ptb_sees_refusals_as_its_own_exceptions(hand: Hand, ptb: telegram.Bot) -> None:
    asked = await hand.says("hi")
    with pytest.raises(telegram.error.BadRequest, match=r"(?i)reaction_invalid"):
        await ptb.set_message_reaction(5, asked["message_id"], "✅")
    with pytest.raises(telegram.error.BadRequest, match=r"(?i)can't parse entities"):
        await ptb.send_message(5, "Done.", parse_mode="MarkdownV2")
    with pytest.raises(telegram.error.BadRequest, match="too long"):
        await ptb.send_message(5, "😀" * 2049)
    with pytest.raises(telegram.error.BadRequest, match="replied not found"):
        await ptb.send_message(5, "x", reply_parameters=telegram.ReplyParameters(999))
    await hand.control("POST", "/users/5/block")
    with pytest.raises(telegram.error.Forbidden, match="blocked by the user"):
        await ptb.send_message(5, "x")
    await hand.fault("sendMessage", FaultKind.TOO_MANY_REQUESTS, retry_after=7)
    with pytest.raises(telegram.error.RetryAfter, match="Retry in 7 seconds"):
        await ptb.send_message(6, "x")
    await hand.control("POST", "/chats/-77/migrate")
    with pytest.raises(telegram.error.ChatMigrated) as migrated:
        await ptb.send_message(-77, "x")
    assert migrated.value.new_chat_id == -1_000_000_000_077


async def test_ptb_understands_a_block(hand: Hand, ptb: telegram.Bot) -> None:
    await hand.says("hi")
    await hand.control("POST", "/users/5/block")
    _, update = await ptb.get_updates(timeout=0)
    assert update.my_chat_member is not None
    assert update.my_chat_member.new_chat_member.status == "kicked"


async def test_ptb_with_a_wrong_token(hand: Hand) -> None:
    stranger = ptb_without_start(hand.simulator, token="1:wrong")
    with pytest.raises(telegram.error.InvalidToken):
        await stranger.initialize()
    await stranger.shutdown()


async def test_aiogram_converses(hand: Hand, aio: aiogram.Bot) -> None:
    me = await aio.get_me()
    assert (me.is_bot, me.username) == (True, "butlers_sim_bot")
    waiting = asyncio.create_task(aio.get_updates(timeout=30))
    await hand.poll_waits()
    await hand.says("/start now")
    async with asyncio.timeout(DEADLINE):
        (update,) = await waiting
    assert update.message is not None and update.message.entities is not None
    assert (update.message.text, update.message.entities[0].type) == ("/start now", "bot_command")
    asked_id = update.message.message_id
    sent = await aio.send_message(
        5, "*hi* Ann", parse_mode="Markdown", reply_parameters=aiogram.types.ReplyParameters(message_id=asked_id)
    )
    assert sent.text == "hi Ann" and sent.reply_to_message is not None
    assert sent.reply_to_message.text == "/start now"
    assert await aio.set_message_reaction(5, asked_id, [aiogram.types.ReactionTypeEmoji(emoji="👾")])
    assert await aio.get_updates(offset=update.update_id + 1, timeout=0) == []
    asked, answered = await hand.lines()
    assert (asked["reactions"], answered["reply_to"]) == (["👾"], asked["message_id"])


async def test_aiogram_edits_deletes_and_looks_around(hand: Hand, aio: aiogram.Bot) -> None:
    sent = await aio.send_message(5, "one")
    edited = await sent.edit_text("two")
    assert isinstance(edited, aiogram.types.Message) and edited.edit_date is not None
    assert [(line["text"], line["edited"]) for line in await hand.lines()] == [("two", True)]
    assert (await aio.get_chat(5)).type == "private"
    assert await aio.send_chat_action(5, "typing")
    assert await sent.delete()
    assert await hand.lines() == []


async def test_aiogram_sees_refusals_as_its_own_exceptions(hand: Hand, aio: aiogram.Bot) -> None:
    asked = await hand.says("hi")
    with pytest.raises(aiogram.exceptions.TelegramBadRequest, match="REACTION_INVALID"):
        await aio.set_message_reaction(5, asked["message_id"], [aiogram.types.ReactionTypeEmoji(emoji="✅")])
    with pytest.raises(aiogram.exceptions.TelegramBadRequest, match="can't parse entities"):
        await aio.send_message(5, "<b>x", parse_mode="HTML")
    with pytest.raises(aiogram.exceptions.TelegramBadRequest, match="message is too long"):
        await aio.send_message(5, "x" * 4097)
    with pytest.raises(aiogram.exceptions.TelegramBadRequest, match="message text is empty"):
        await aio.send_message(5, "  ")
    with pytest.raises(aiogram.exceptions.TelegramBadRequest, match="replied not found"):
        await aio.send_message(5, "x", reply_parameters=aiogram.types.ReplyParameters(message_id=999))
    await hand.control("POST", "/users/5/block")
    with pytest.raises(aiogram.exceptions.TelegramForbiddenError, match="blocked by the user"):
        await aio.send_message(5, "x")
    await hand.fault("sendMessage", FaultKind.ERROR_5XX, status=502)
    with pytest.raises(aiogram.exceptions.TelegramServerError):
        await aio.send_message(6, "x")
    await hand.control("POST", "/settings", {"strict_chats": True})
    with pytest.raises(aiogram.exceptions.TelegramBadRequest, match="chat not found"):
        await aio.send_message(8, "x")
    await hand.control("POST", "/chats/-77/migrate")
    with pytest.raises(aiogram.exceptions.TelegramMigrateToChat) as migrated:
        await aio.send_message(-77, "x")
    assert migrated.value.migrate_to_chat_id == -1_000_000_000_077
    assert [line["from"] for line in await hand.lines()] == ["user"]  # none of the refused was kept


async def test_aiogram_is_throttled_in_one_chat_only(hand: Hand, aio: aiogram.Bot) -> None:
    await hand.fault("sendMessage", FaultKind.TOO_MANY_REQUESTS, retry_after=3, chat_id=6)
    await aio.send_message(7, "another chat is not slowed down")
    with pytest.raises(aiogram.exceptions.TelegramRetryAfter) as throttled:
        await aio.send_message(6, "x")
    assert throttled.value.retry_after == 3
    assert (await aio.send_message(6, "x")).text == "x"


async def test_aiogram_with_a_wrong_token(hand: Hand) -> None:
    async with aiogram_bot(hand.simulator, token="1:wrong") as stranger:
        with pytest.raises(aiogram.exceptions.TelegramUnauthorizedError):
            await stranger.get_me()


async def test_the_later_of_two_pollers_wins(hand: Hand, ptb: telegram.Bot, aio: aiogram.Bot) -> None:
    first = asyncio.create_task(ptb.get_updates(timeout=30))
    await hand.poll_waits()
    second = asyncio.create_task(aio.get_updates(timeout=30))
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(telegram.error.Conflict, match="terminated by other getUpdates request"):
            await first
        await hand.poll_waits()
        third = asyncio.create_task(ptb.get_updates(timeout=30))
        with pytest.raises(aiogram.exceptions.TelegramConflictError, match="terminated by other getUpdates request"):
            await second
        await hand.poll_waits()
        await hand.says("hi")
        (update,) = await third
    assert update.message is not None and update.message.text == "hi"


async def test_polling_and_a_webhook_exclude_each_other(hand: Hand, ptb: telegram.Bot, aio: aiogram.Bot) -> None:
    waiting = asyncio.create_task(ptb.get_updates(timeout=30))
    await hand.poll_waits()
    await aio.set_webhook("http://127.0.0.1:1/")
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(telegram.error.Conflict, match="terminated by setWebhook request"):
            await waiting
    refusal = "can't use getUpdates method while webhook is active"
    with pytest.raises(aiogram.exceptions.TelegramConflictError, match=refusal):
        await aio.get_updates(timeout=0)
    await aio.delete_webhook()
    assert await ptb.get_updates(timeout=0) == ()
