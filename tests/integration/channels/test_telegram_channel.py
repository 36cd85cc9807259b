"""The Telegram channel against a Bot API on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import UUID

import pytest

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Outgoing, Sent, Throttle
from butlers.channels.telegram.adapter import DEFAULT_WAIT, TelegramChannel
from butlers.channels.telegram.simulator.model import FaultKind
from butlers.clock import ManualClock
from butlers.errors import LeaseLost, TargetUnavailable, TimeoutExceeded, ValidationError
from tests.integration.simulators.telegram_support import DEADLINE, Hand, serving

ONE, TWO, THREE = "one " * 900, "two " * 900, "three " * 600
LONG = f"{ONE}\n\n{TWO}\n\n{THREE}"
PARTS = [ONE.strip(), TWO.strip(), THREE.strip()]


class Record:
    """A wire that keeps what it is told, and holds the channel to the order of the saga."""

    def __init__(self, parts_sent: Mapping[int, str] | None = None) -> None:
        self.left: list[int] = []
        self.parts: dict[int, str] = dict(parts_sent or {})
        self.fails_at: int | None = None

    def leaving(self, part: int = 1) -> None:
        assert all(earlier in self.parts for earlier in range(1, part)), "left before the earlier ones were on record"
        self.left.append(part)

    async def part_sent(self, part: int, provider_delivery_id: str) -> None:
        if part == self.fails_at:
            raise LeaseLost("somebody else owns it now")
        await asyncio.sleep(0)
        self.parts[part] = provider_delivery_id


@pytest.fixture
async def hand() -> AsyncIterator[Hand]:
    async with serving() as hand:
        yield hand


@pytest.fixture
async def channel(hand: Hand) -> AsyncIterator[TelegramChannel]:
    async with opened(hand) as channel:
        yield channel


@contextlib.asynccontextmanager
async def opened(hand: Hand, **options: Any) -> AsyncIterator[TelegramChannel]:
    given: dict[str, Any] = {"token": hand.simulator.token, "base_url": hand.simulator.base_url} | options
    channel = TelegramChannel(**given)
    yield channel
    await channel.close()


def outgoing(message: str = "hello", **changes: Any) -> Outgoing:
    given: dict[str, Any] = {"intent": "send", "target": "5", "message": message}
    return Outgoing(delivery_id=UUID(int=1), idempotency_key="k", **given | changes)


async def attempt(
    channel: TelegramChannel, message: Outgoing, wire: Record | None = None, timeout_s: float = DEADLINE
) -> AttemptResult:
    result = await channel.attempt(message, timeout_s=timeout_s, wire=wire or Record(message.parts_sent))
    evidence = json.dumps(dict(result.response))
    assert "phase" in result.response
    assert not any(word in evidence for word in ("hello", "simulated-bot", "one one"))
    return result


async def refused(channel: TelegramChannel, message: Outgoing, wire: Record | None = None) -> NotSent:
    result = await attempt(channel, message, wire)
    assert isinstance(result, NotSent)
    return result


# A message and its parts


async def test_a_message_arrives_as_it_was_meant(hand: Hand, channel: TelegramChannel) -> None:
    wire = Record()
    result = await attempt(channel, outgoing("[fin] **4 < 5** & `a_b` 2*3*4 [x](https://e.org/?a=1&b=2)"), wire)
    assert result == Sent(
        provider_delivery_id="1",
        part=1,
        response={"phase": "answered", "part": 1, "parts": 1, "message_id": 1},
    )
    (line,) = await hand.lines()
    assert line["text"] == "[fin] 4 < 5 & a_b 2*3*4 x"
    assert [(e["type"], e["length"]) for e in line["entities"]] == [("bold", 5), ("code", 3), ("text_link", 1)]
    assert line["entities"][2]["url"] == "https://e.org/?a=1&b=2"
    assert (wire.left, wire.parts) == ([1], {})


async def test_without_a_parse_mode_a_message_arrives_as_it_was_written(hand: Hand) -> None:
    async with opened(hand, parse_mode="none", identity_scope="user") as channel:
        assert channel.identity_scope == "user"
        assert isinstance(await attempt(channel, outgoing("**a** <b> &amp;")), Sent)
    assert await hand.texts() == ["**a** <b> &amp;"]


async def test_a_long_message_arrives_in_parts_and_only_the_first_answers(hand: Hand, channel: TelegramChannel) -> None:
    asked = (await hand.says("tell me all"))["message_id"]
    wire = Record()
    message = outgoing(LONG, intent="reply", source_event={"message_id": asked})
    result = await attempt(channel, message, wire)
    lines = (await hand.lines())[1:]
    assert [line["text"] for line in lines] == PARTS
    assert [line["reply_to"] for line in lines] == [asked, None, None]
    assert isinstance(result, Sent)
    assert (result.part, result.provider_delivery_id) == (3, str(lines[2]["message_id"]))
    assert wire.left == [1, 2, 3]
    assert wire.parts == {1: str(lines[0]["message_id"]), 2: str(lines[1]["message_id"])}


async def test_every_part_of_a_huge_message_is_taken(hand: Hand, channel: TelegramChannel) -> None:
    code = "\n".join(f"    step_{n} = '😀<&>' * {n}" for n in range(900))
    message = f"[fin] **Look:**\n\n```py\n{code}\n```\n\n" + "[a](https://e.org) " * 150 + "é" * 5000
    assert isinstance(await attempt(channel, outgoing(message)), Sent)
    lines = await hand.lines()
    assert "".join("".join(line["text"] for line in lines).split()) == "".join(
        f"[fin] Look: {code} {'a' * 150}{'é' * 5000}".split()
    )
    assert sum(entity["type"] == "text_link" for line in lines for entity in line["entities"]) == 150
    assert {e.get("language") for line in lines for e in line["entities"] if e["type"] == "pre"} == {"py"}


async def test_a_message_with_nothing_to_show_is_not_sent(hand: Hand, channel: TelegramChannel) -> None:
    wire = Record()
    result = await refused(channel, outgoing("  "), wire)
    assert isinstance(result.error, ValidationError)
    assert (result.certainty, wire.left) == (Certainty.NOT_SENT, [])


# Breaking off and going on


async def test_after_a_broken_connection_only_what_is_missing_is_sent(hand: Hand, channel: TelegramChannel) -> None:
    await hand.fault("sendMessage", FaultKind.DROP_AFTER, skip=1)
    wire = Record()
    broken = await refused(channel, outgoing(LONG), wire)
    assert broken.certainty is Certainty.UNCERTAIN
    assert broken.response == {"phase": "answer_awaited", "part": 2, "parts": 3}
    assert not broken.answered
    assert await hand.texts() == PARTS[:2], "the second part came through, though nobody said so"
    assert (wire.left, list(wire.parts)) == ([1, 2], [1])

    settled = wire.parts | {2: "seen by the owner"}
    again = Record(settled)
    result = await attempt(channel, outgoing(LONG, parts_sent=settled), again)
    assert isinstance(result, Sent)
    assert await hand.texts() == PARTS
    assert (again.left, list(again.parts)) == ([3], [1, 2])


async def test_when_the_second_part_was_not_taken_it_is_sent_again_and_nothing_else_is(
    hand: Hand, channel: TelegramChannel
) -> None:
    await hand.fault("sendMessage", FaultKind.ERROR_5XX, skip=1)
    wire = Record()
    failed = await refused(channel, outgoing(LONG), wire)
    assert (failed.certainty, failed.error.retryable, failed.response["part"]) == (Certainty.NOT_SENT, True, 2)
    again = Record(wire.parts)
    assert isinstance(await attempt(channel, outgoing(LONG, parts_sent=wire.parts), again), Sent)
    assert await hand.texts() == PARTS
    assert again.left == [2, 3]


async def test_when_all_parts_are_on_record_nothing_is_sent(hand: Hand, channel: TelegramChannel) -> None:
    done = {1: "11", 2: "12", 3: "13"}
    result = await attempt(channel, outgoing(LONG, parts_sent=done))
    assert isinstance(result, Sent)
    assert (result.provider_delivery_id, result.part) == ("13", 3)
    assert await hand.texts() == []


async def test_a_part_that_could_not_be_put_on_record_is_the_last(hand: Hand, channel: TelegramChannel) -> None:
    wire = Record()
    wire.fails_at = 1
    with pytest.raises(LeaseLost):
        await channel.attempt(outgoing(LONG), timeout_s=DEADLINE, wire=wire)
    assert await hand.texts() == PARTS[:1]


# Said another way


async def test_markup_that_telegram_cannot_read_goes_as_plain_text(hand: Hand, channel: TelegramChannel) -> None:
    await hand.fault("sendMessage", FaultKind.UNPARSABLE)
    wire = Record()
    result = await attempt(channel, outgoing("**hello** <b> [x](https://e.org)"), wire)
    assert isinstance(result, Sent)
    assert result.response["plain"] is True
    (line,) = await hand.lines()
    assert (line["text"], line["entities"]) == ("hello <b> x (https://e.org)", [])
    assert wire.left == [1, 1]


async def test_only_the_part_with_unreadable_markup_is_plain(hand: Hand, channel: TelegramChannel) -> None:
    await hand.fault("sendMessage", FaultKind.UNPARSABLE, skip=1)
    message = "\n\n".join(f"**{text}**" for text in PARTS)
    wire = Record()
    result = await attempt(channel, outgoing(message), wire)
    assert isinstance(result, Sent)
    assert "plain" not in result.response
    assert [bool(line["entities"]) for line in await hand.lines()] == [True, False, True]
    assert wire.left == [1, 2, 2, 3]


async def test_a_plain_text_that_is_refused_is_not_tried_again(hand: Hand, channel: TelegramChannel) -> None:
    words = "Bad Request: can't parse entities"
    await hand.fault("sendMessage", FaultKind.REFUSED, status=400, description=words, times=None)
    wire = Record()
    result = await refused(channel, outgoing(), wire)
    assert isinstance(result.error, ValidationError)
    assert result.response["plain"] is True
    assert wire.left == [1, 1]


async def test_a_group_that_moved_is_found_at_its_new_place(hand: Hand, channel: TelegramChannel) -> None:
    posted = await hand.control("POST", "/messages", {"chat_id": -7, "from": {"id": 5}, "text": "hi"})
    new = (await hand.control("POST", "/chats/-7/migrate", {}))["migrate_to_chat_id"]
    wire = Record()
    message = outgoing(LONG, target="-7", intent="reply", source_event={"message_id": posted["message_id"]})
    result = await attempt(channel, message, wire)
    assert isinstance(result, Sent)
    assert result.moved_to == str(new)
    lines = await hand.lines(new)
    assert [line["text"] for line in lines] == PARTS
    assert {line["reply_to"] for line in lines} == {None}, "its number means another message there"
    assert wire.left == [1, 1, 2, 3], "the move is learnt once"


async def test_where_a_group_moved_to_is_told_also_when_it_refuses(hand: Hand, channel: TelegramChannel) -> None:
    new = (await hand.control("POST", "/chats/-7/migrate", {}))["migrate_to_chat_id"]
    await hand.fault("sendMessage", FaultKind.TOO_MANY_REQUESTS, chat_id=new, retry_after=9)
    result = await refused(channel, outgoing(target="-7"))
    assert (result.moved_to, result.throttle) == (str(new), Throttle(scope="target", seconds=9))


async def test_a_group_that_keeps_moving_is_followed_once(hand: Hand, channel: TelegramChannel) -> None:
    new = (await hand.control("POST", "/chats/-7/migrate", {}))["migrate_to_chat_id"]
    hand.simulator.world.commit(
        {"change": "chat_migrated", "bot": int(hand.simulator.token.partition(":")[0]), "from": new, "to": new - 1}
    )
    wire = Record()
    result = await refused(channel, outgoing(target="-7"), wire)
    assert isinstance(result.error, ValidationError)
    assert (result.moved_to, wire.left) == (str(new - 1), [1, 1])


# Every refusal


async def test_too_many_requests_closes_the_chat_for_the_time_it_says(hand: Hand, channel: TelegramChannel) -> None:
    await hand.fault("sendMessage", FaultKind.TOO_MANY_REQUESTS, retry_after=35, chat_id=5)
    result = await refused(channel, outgoing())
    assert isinstance(result.error, TargetUnavailable)
    assert (result.error.retryable, result.error.retry_after) == (True, 35)
    assert result.throttle == Throttle(scope="target", seconds=35)
    assert (result.certainty, result.answered) == (Certainty.NOT_SENT, True)
    assert result.response == {
        "phase": "answered",
        "part": 1,
        "parts": 1,
        "error_code": 429,
        "description": "Too Many Requests: retry after 35",
        "parameters": {"retry_after": 35},
    }
    assert isinstance(await attempt(channel, outgoing(target="6")), Sent), "only that chat"


async def test_too_many_requests_without_a_time(hand: Hand, channel: TelegramChannel) -> None:
    await hand.fault("sendMessage", FaultKind.REFUSED, status=429)
    result = await refused(channel, outgoing())
    assert result.throttle == Throttle(scope="target", seconds=DEFAULT_WAIT)
    assert result.error.retry_after == DEFAULT_WAIT


async def test_the_documented_limits_stop_a_saga_where_it_can_go_on() -> None:
    async with serving(ManualClock()) as hand, opened(hand) as channel:
        await hand.control("POST", "/settings", {"enforce_limits": True})
        message = "\n\n".join(str(n) * 4000 for n in range(7))
        wire = Record()
        result = await refused(channel, outgoing(message), wire)
        assert result.throttle is not None
        assert (result.response["part"], sorted(wire.parts)) == (6, [1, 2, 3, 4, 5])


async def test_a_user_who_blocked_the_bot_is_gone(hand: Hand, channel: TelegramChannel) -> None:
    await hand.says("hi")
    await hand.control("POST", "/users/5/block")
    result = await refused(channel, outgoing())
    assert isinstance(result.error, TargetUnavailable)
    assert (result.recipient_gone, result.error.retryable, result.certainty) == (True, False, Certainty.NOT_SENT)


@pytest.mark.parametrize(
    ("status", "description", "expected"),
    [
        (403, "Forbidden: bot was kicked from the group chat", (TargetUnavailable, False, True)),
        (403, "Forbidden: user is deactivated", (TargetUnavailable, False, True)),
        (401, "Unauthorized", (TargetUnavailable, False, False)),
        (404, "Not Found", (TargetUnavailable, False, False)),
        (400, "Bad Request: chat not found", (ValidationError, False, False)),
        (413, "Request Entity Too Large", (ValidationError, False, False)),
        (500, "Internal Server Error", (TargetUnavailable, True, False)),
        (502, "Bad Gateway", (TargetUnavailable, True, False)),
    ],
)
async def test_a_refusal_is_certain_and_has_its_class(
    hand: Hand, channel: TelegramChannel, status: int, description: str, expected: tuple[type, bool, bool]
) -> None:
    await hand.fault("sendMessage", FaultKind.REFUSED, status=status, description=description)
    result = await refused(channel, outgoing())
    assert (type(result.error), result.error.retryable, result.recipient_gone) == expected
    assert (result.certainty, result.answered, result.throttle) == (Certainty.NOT_SENT, True, None)
    assert (result.response["error_code"], result.response["description"]) == (status, description)
    assert await hand.texts() == []


@pytest.mark.parametrize("token", ["1:wrong", "nonsense"])
async def test_a_bad_token_is_the_channels_fault(hand: Hand, token: str) -> None:
    async with opened(hand, token=token) as channel:
        result = await refused(channel, outgoing())
    assert isinstance(result.error, TargetUnavailable)
    assert (result.error.retryable, result.recipient_gone, result.answered) == (False, False, True)


# No answer


async def test_a_gateways_page_leaves_us_uncertain(hand: Hand, channel: TelegramChannel) -> None:
    await hand.fault("sendMessage", FaultKind.GATEWAY, status=502)
    result = await refused(channel, outgoing())
    assert (result.certainty, result.answered) == (Certainty.UNCERTAIN, False)
    assert result.response == {"phase": "answer_awaited", "part": 1, "parts": 1, "status": 502}


@pytest.mark.parametrize(("kind", "arrived"), [(FaultKind.DROP_BEFORE, []), (FaultKind.DROP_AFTER, ["hello"])])
async def test_a_broken_connection_leaves_us_uncertain(
    hand: Hand, channel: TelegramChannel, kind: FaultKind, arrived: list[str]
) -> None:
    await hand.fault("sendMessage", kind)
    wire = Record()
    result = await refused(channel, outgoing(), wire)
    assert isinstance(result.error, TargetUnavailable)
    assert (result.certainty, wire.left) == (Certainty.UNCERTAIN, [1])
    assert result.response == {"phase": "answer_awaited", "part": 1, "parts": 1}
    assert await hand.texts() == arrived


async def test_an_answer_that_does_not_come_in_time_leaves_us_uncertain() -> None:
    async with serving(ManualClock()) as hand, opened(hand) as channel:
        await hand.fault("sendMessage", FaultKind.DELAY, seconds=60, skip=1)
        result = await attempt(channel, outgoing(LONG), timeout_s=0.5)
        assert isinstance(result, NotSent)
        assert isinstance(result.error, TimeoutExceeded)
        assert result.certainty is Certainty.UNCERTAIN
        assert result.response == {"phase": "answer_awaited", "part": 2, "parts": 3}


async def test_a_part_that_has_no_time_left_is_not_begun_and_that_is_not_telegrams_fault(
    hand: Hand, channel: TelegramChannel
) -> None:
    class Slow(Record):
        async def part_sent(self, part: int, provider_delivery_id: str) -> None:
            late = asyncio.get_running_loop().time() + 1.0
            while asyncio.get_running_loop().time() < late:
                await asyncio.sleep(0.1)
            await super().part_sent(part, provider_delivery_id)

    wire = Slow()
    result = await attempt(channel, outgoing(LONG), wire, timeout_s=1.0)
    assert isinstance(result, NotSent)
    assert isinstance(result.error, TimeoutExceeded)
    assert (result.certainty, result.error.retryable, result.asked) == (Certainty.NOT_SENT, True, False)
    assert result.response == {"phase": "not_begun", "part": 2, "parts": 3}
    assert (wire.left, list(wire.parts), await hand.texts()) == ([1], [1], PARTS[:1])
    again = Record(wire.parts)
    assert isinstance(await attempt(channel, outgoing(LONG, parts_sent=wire.parts), again), Sent)
    assert await hand.texts() == PARTS


async def test_what_never_connected_was_not_sent() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        channel, wire = TelegramChannel(token="1:x", base_url=base_url), Record()
        result = await refused(channel, outgoing(), wire)
        await channel.close()
    assert isinstance(result.error, TargetUnavailable)
    assert (result.certainty, result.error.retryable, wire.left) == (Certainty.NOT_SENT, True, [])
    assert result.response == {"phase": "connecting", "part": 1, "parts": 1}


async def test_a_greeting_that_does_not_come_in_time_means_not_sent() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        channel = TelegramChannel(token="1:x", base_url=f"https://127.0.0.1:{port}")
        result = await attempt(channel, outgoing(), timeout_s=0.2)
        await channel.close()
    assert isinstance(result, NotSent)
    assert isinstance(result.error, TimeoutExceeded)
    assert (result.certainty, result.response["phase"]) == (Certainty.NOT_SENT, "connecting")


async def test_a_proxy_that_gives_no_way_through_means_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(closed, "127.0.0.1", 0)
    async with server:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        channel, wire = TelegramChannel(token="1:x", base_url="https://telegram.invalid"), Record()
        result = await refused(channel, outgoing(), wire)
        await channel.close()
    assert asked[0].startswith(b"CONNECT telegram.invalid:443")
    assert (result.certainty, result.error.retryable, wire.left) == (Certainty.NOT_SENT, True, [])
    assert result.response["phase"] == "connecting"


# Reactions


async def test_a_reaction_is_put_on_its_message(hand: Hand, channel: TelegramChannel) -> None:
    asked = (await hand.says("hi"))["message_id"]
    wire = Record()
    result = await attempt(
        channel, outgoing("", intent="react", emoji="❤\ufe0f", source_event={"message_id": asked}), wire
    )
    assert isinstance(result, Sent)
    assert [line["reactions"] for line in await hand.lines()] == [["❤"]]
    assert wire.left == [1]


async def test_a_reaction_that_telegram_does_not_have_never_leaves(hand: Hand, channel: TelegramChannel) -> None:
    asked = (await hand.says("hi"))["message_id"]
    wire = Record()
    result = await refused(channel, outgoing("", intent="react", emoji="✅", source_event={"message_id": asked}), wire)
    assert isinstance(result.error, ValidationError)
    assert (result.certainty, wire.left) == (Certainty.NOT_SENT, [])
    assert (await hand.control("GET", "/requests"))["counts"] == {}


async def test_a_reaction_does_not_follow_a_group_that_moved(hand: Hand, channel: TelegramChannel) -> None:
    posted = await hand.control("POST", "/messages", {"chat_id": -7, "from": {"id": 5}, "text": "hi"})
    new = (await hand.control("POST", "/chats/-7/migrate", {}))["migrate_to_chat_id"]
    await hand.control("POST", "/messages", {"chat_id": new, "from": {"id": 5}, "text": "another first message"})
    event, wire = {"message_id": posted["message_id"]}, Record()
    result = await refused(channel, outgoing("", target="-7", intent="react", emoji="👍", source_event=event), wire)
    assert isinstance(result.error, ValidationError)
    assert (result.moved_to, wire.left) == (str(new), [1])
    assert [line["reactions"] for line in await hand.lines(new)] == [[]]


async def test_telegram_cannot_be_asked_what_it_has(channel: TelegramChannel) -> None:
    assert await channel.find(outgoing()) is None
