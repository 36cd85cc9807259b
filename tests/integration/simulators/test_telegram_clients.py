"""Two independent client libraries talk to the simulator as they would to Telegram."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import telegram
import telegram.error
from aiogram import Bot as AiogramBot  # type: ignore[import-untyped]
from aiogram.bot.api import TelegramAPIServer  # type: ignore[import-untyped]
from aiogram.utils import exceptions as aiogram_errors  # type: ignore[import-untyped]
from telegram.request import HTTPXRequest

from butlers.simulators.telegram.faults import FaultKind
from tests.integration.simulators.telegram_support import DEADLINE, Hand, serving


@pytest.fixture
async def hand() -> AsyncIterator[Hand]:
    async with serving() as hand:
        yield hand


@pytest.fixture
async def ptb(hand: Hand) -> AsyncIterator[telegram.Bot]:
    def transport() -> HTTPXRequest:
        return HTTPXRequest(httpx_kwargs={"trust_env": False})

    async with telegram.Bot(
        hand.simulator.token,
        base_url=f"{hand.simulator.base_url}/bot",
        request=transport(),
        get_updates_request=transport(),
    ) as bot:
        yield bot


@pytest.fixture
async def aiogram(hand: Hand) -> AsyncIterator[Any]:
    bot = AiogramBot(hand.simulator.token, server=TelegramAPIServer.from_base(hand.simulator.base_url))
    yield bot
    await (await bot.get_session()).close()


async def react_with_aiogram(bot: Any, message_id: int, emoji: str) -> Any:
    # This release of aiogram is older than reactions; its general request does what its method would.
    reaction = json.dumps([{"type": "emoji", "emoji": emoji}])
    return await bot.request("setMessageReaction", {"chat_id": 5, "message_id": message_id, "reaction": reaction})


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
    stranger = telegram.Bot(
        "1:wrong",
        base_url=f"{hand.simulator.base_url}/bot",
        request=HTTPXRequest(httpx_kwargs={"trust_env": False}),
    )
    with pytest.raises(telegram.error.InvalidToken):
        await stranger.initialize()
    await stranger.shutdown()


async def test_aiogram_converses(hand: Hand, aiogram: Any) -> None:
    me = await aiogram.get_me()
    assert me.username == "butlers_sim_bot"
    waiting = asyncio.create_task(aiogram.get_updates(timeout=30))
    await hand.poll_waits()
    await hand.says("/start now")
    async with asyncio.timeout(DEADLINE):
        (update,) = await waiting
    assert update.message.get_command() == "/start"
    sent = await aiogram.send_message(5, "*hi*", parse_mode="Markdown", reply_to_message_id=1)
    assert (sent.text, sent.reply_to_message.text) == ("hi", "/start now")
    assert await react_with_aiogram(aiogram, update.message.message_id, "👾") is True
    assert await aiogram.get_updates(offset=update.update_id + 1, timeout=0) == []
    asked, answered = await hand.lines()
    assert (asked["reactions"], answered["reply_to"]) == (["👾"], asked["message_id"])


async def test_aiogram_sees_refusals_as_its_own_exceptions(hand: Hand, aiogram: Any) -> None:
    asked = await hand.says("hi")
    with pytest.raises(aiogram_errors.BadRequest, match=r"(?i)reaction_invalid"):
        await react_with_aiogram(aiogram, asked["message_id"], "✅")
    with pytest.raises(aiogram_errors.CantParseEntities):
        await aiogram.send_message(5, "<b>x", parse_mode="HTML")
    with pytest.raises(aiogram_errors.MessageIsTooLong):
        await aiogram.send_message(5, "x" * 4097)
    with pytest.raises(aiogram_errors.MessageTextIsEmpty):
        await aiogram.send_message(5, "  ")
    await hand.control("POST", "/users/5/block")
    with pytest.raises(aiogram_errors.BotBlocked):
        await aiogram.send_message(5, "x")
    await hand.fault("sendMessage", FaultKind.TOO_MANY_REQUESTS, retry_after=3, chat_id=6)
    await aiogram.send_message(7, "another chat is not slowed down")
    with pytest.raises(aiogram_errors.RetryAfter) as throttled:
        await aiogram.send_message(6, "x")
    assert throttled.value.timeout == 3
    await hand.control("POST", "/settings", {"strict_chats": True})
    with pytest.raises(aiogram_errors.ChatNotFound):
        await aiogram.send_message(8, "x")
    await hand.control("POST", "/chats/-77/migrate")
    with pytest.raises(aiogram_errors.MigrateToChat) as migrated:
        await aiogram.send_message(-77, "x")
    assert migrated.value.migrate_to_chat_id == -1_000_000_000_077


async def test_the_later_of_two_pollers_wins(hand: Hand, ptb: telegram.Bot, aiogram: Any) -> None:
    earlier = asyncio.create_task(ptb.get_updates(timeout=30))
    await hand.poll_waits()
    later = asyncio.create_task(aiogram.get_updates(timeout=30))
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(telegram.error.Conflict, match="terminated by other getUpdates request"):
            await earlier
        await hand.poll_waits()
        await hand.says("hi")
        (update,) = await later
    assert update.message.text == "hi"


async def test_polling_and_a_webhook_exclude_each_other(hand: Hand, ptb: telegram.Bot, aiogram: Any) -> None:
    waiting = asyncio.create_task(ptb.get_updates(timeout=30))
    await hand.poll_waits()
    await aiogram.set_webhook("http://127.0.0.1:1/")
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(telegram.error.Conflict, match="terminated by setWebhook request"):
            await waiting
    with pytest.raises(aiogram_errors.CantGetUpdates):
        await aiogram.get_updates(timeout=0)
    await aiogram.delete_webhook()
    assert await ptb.get_updates(timeout=0) == ()
