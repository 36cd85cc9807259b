"""The two doors over plain HTTP: how parameters travel, long polls, refusals, and the control API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from butlers.channels.email.simulator import serve_mail
from butlers.channels.telegram.simulator import serve_telegram
from butlers.clock import ManualClock
from butlers.errors import ConfigurationError
from tests.integration.simulators.telegram_support import DEADLINE, Hand, says, serving


@pytest.fixture
async def hand() -> AsyncIterator[Hand]:
    async with serving() as hand:
        yield hand


@pytest.mark.parametrize("way", ["query", "form", "multipart", "json", "json text"])
async def test_parameters_travel_in_every_way(hand: Hand, way: str) -> None:
    await hand.says("hi")
    reply_to = {"message_id": 1}
    flat = {"chat_id": "5", "text": "ho <b>ho</b>", "parse_mode": "HTML", "reply_parameters": json.dumps(reply_to)}
    ways: dict[str, dict[str, Any]] = {
        "query": {"params": flat},
        "form": {"data": flat},
        "multipart": {"files": {name: (None, value) for name, value in flat.items()}},
        "json": {"json": flat | {"chat_id": 5, "reply_parameters": reply_to}},
        "json text": {"json": flat},
    }
    verb = "GET" if way == "query" else "POST"
    reply = await hand.client.request(verb, f"/bot{hand.simulator.token}/SENDmessage", **ways[way])
    assert reply.status_code == 200, reply.text
    result = reply.json()["result"]
    assert (result["text"], result["reply_to_message"]["message_id"]) == ("ho ho", 1)


@pytest.mark.parametrize(
    ("path", "code", "description"),
    [
        ("/bot{token}/sendTelepathy", 404, "Not Found"),
        ("/bot1:unknown/getMe", 401, "Unauthorized"),
        ("/botnonsense/getMe", 404, "Not Found"),
        ("/elsewhere", 404, "Not Found"),
    ],
)
async def test_what_is_not_there(hand: Hand, path: str, code: int, description: str) -> None:
    reply = await hand.client.get(path.format(token=hand.simulator.token))
    assert reply.status_code == code
    assert reply.json() == {"ok": False, "error_code": code, "description": description}


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", rb'{"chat_id": 5, "text": "\ud800"}'])
async def test_a_body_that_cannot_be_read(hand: Hand, body: bytes) -> None:
    reply = await hand.client.post(
        f"/bot{hand.simulator.token}/sendMessage", content=body, headers={"content-type": "application/json"}
    )
    assert (reply.status_code, reply.json()["error_code"]) == (400, 400)


async def test_the_longest_message_in_utf16_units(hand: Hand) -> None:
    assert (await hand.bot("sendMessage", chat_id=5, text="😀" * 2048))["ok"]
    refused = await hand.bot("sendMessage", chat_id=5, text="😀" * 2048 + "x")
    assert refused["description"] == "Bad Request: message is too long"
    assert len(await hand.texts()) == 1


async def test_a_long_poll_ends_empty_when_its_time_is_over() -> None:
    clock = ManualClock()
    async with serving(clock) as hand:
        waiting = asyncio.create_task(hand.bot("getUpdates", timeout=20))
        await hand.poll_waits()
        assert (await hand.bot("getMe"))["ok"]  # by then the poll's own timer runs
        clock.advance(19)
        assert (await hand.bot("getMe"))["ok"] and not waiting.done()
        clock.advance(1)
        async with asyncio.timeout(DEADLINE):
            assert (await waiting)["result"] == []


async def test_a_long_poll_is_not_woken_by_what_it_did_not_ask_for(hand: Hand) -> None:
    waiting = asyncio.create_task(hand.bot("getUpdates", timeout=20, allowed_updates=["edited_message"]))
    await hand.poll_waits()
    first = await hand.says("hello")
    assert first["update"] is None and not waiting.done()
    second = await hand.says("hello!", edit_of=first["message_id"])
    async with asyncio.timeout(DEADLINE):
        assert (await waiting)["result"] == [second["update"]]


async def test_the_last_one_was_meant_at_the_time_of_asking(hand: Hand) -> None:
    waiting = asyncio.create_task(hand.bot("getUpdates", timeout=20, offset=-1))
    await hand.poll_waits()
    for text in ("one", "two"):  # both within one turn of the loop, before the poll can wake
        says(hand.simulator.world, text)
    async with asyncio.timeout(DEADLINE):
        assert [update["message"]["text"] for update in (await waiting)["result"]] == ["one", "two"]


async def test_limit_and_offset_over_http(hand: Hand) -> None:
    told = [(await hand.says(f"m{n}"))["update"] for n in range(5)]
    assert (await hand.bot("getUpdates", limit=2))["result"] == told[:2]
    assert (await hand.bot("getUpdates", offset=told[3]["update_id"]))["result"] == told[3:]
    assert (await hand.bot("getUpdates"))["result"] == told[3:]
    assert (await hand.bot("getUpdates", offset=-1))["result"] == told[4:]
    assert (await hand.bot("getUpdates"))["result"] == told[4:]


async def test_stopping_lets_a_waiting_poll_go() -> None:
    async with asyncio.timeout(DEADLINE):
        async with serving() as hand:
            waiting = asyncio.create_task(hand.bot("getUpdates", timeout=50))
            await hand.poll_waits()
            hand.simulator.polls.close()
            assert (await waiting)["result"] == []


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/messages", {}, {"chat_id", "from", "text"}),
        ("/messages", {"chat_id": "5", "from": {"id": -1}, "text": 7, "x": 1}, {"chat_id", "from.id", "text", "x"}),
        ("/messages", {"chat_id": 5, "from": {"id": 6}, "text": " "}, {"from.id", "text"}),
        ("/messages", {"chat_id": 5, "from": {"id": 5}, "text": "x", "edit_of": 9}, {"edit_of"}),
        ("/messages", {"chat_id": 5, "from": {"id": 5}, "text": "x", "reply_to": 9}, {"reply_to"}),
        ("/messages", {"chat_id": 5, "from": {"id": 5}, "text": "x" * 4097}, {"text"}),
        ("/faults", {"method": "sendPigeon", "kind": "explode", "times": 0}, {"method", "kind", "times"}),
        ("/faults", {"method": "*", "kind": "error_5xx", "status": 200, "seconds": -1}, {"status", "seconds"}),
        ("/settings", {"strict": True}, {"strict"}),
        ("/settings", {"strict_chats": "yes"}, {"strict_chats"}),
        ("/chats/5/migrate", {}, {"chat_id"}),
        ("/chats/x/migrate", {}, {"chat_id"}),
        ("/users/x/block", {}, {"user_id"}),
    ],
)  # fmt: skip
async def test_bad_control_input_names_every_field(hand: Hand, path: str, body: Any, fields: set[str]) -> None:
    reply = await hand.client.post(f"/control{path}", json=body)
    assert reply.status_code == 422, reply.text
    error = reply.json()["error"]
    assert error["class"] == "validation_error"
    assert {field["field"] for field in error["fields"]} == fields
    assert await hand.control("GET", "/chats") == {"chats": []}


async def test_control_input_that_is_not_json(hand: Hand) -> None:
    reply = await hand.client.post("/control/messages", content=b"\xff{")
    assert reply.status_code == 400
    assert reply.json()["error"]["fields"] == [{"field": "", "error": "the body is not JSON in UTF-8"}]


async def test_chats_transcript_and_reset(hand: Hand) -> None:
    told = await hand.says("hi")
    await hand.bot("sendMessage", chat_id=5, text="ho", reply_to_message_id=told["message_id"])
    chats = (await hand.control("GET", "/chats"))["chats"]
    assert chats == [{"id": 5, "type": "private", "first_name": "Ann", "messages": 2}]
    lines = await hand.lines()
    assert [(line["from"], line["text"], line["reply_to"]) for line in lines] == [
        ("user", "hi", None),
        ("bot", "ho", told["message_id"]),
    ]
    await hand.control("POST", "/reset")
    assert await hand.lines() == []
    assert (await hand.control("GET", "/requests"))["requests"] == []
    again = await hand.says("hi again")
    assert again["update"]["update_id"] > told["update"]["update_id"]


async def test_an_unknown_chat_has_an_empty_transcript_unless_chats_are_strict(hand: Hand) -> None:
    assert await hand.lines(404) == []
    await hand.control("POST", "/settings", {"strict_chats": True})
    assert (await hand.client.get("/control/chats/404/transcript")).status_code == 404


async def test_updates_can_be_renumbered_below_a_saved_offset(hand: Hand) -> None:
    told = (await hand.says("before"))["update"]
    saved = told["update_id"] + 1
    assert (await hand.bot("getUpdates", offset=saved))["result"] == []
    await hand.control("POST", "/settings", {"next_update_id": 7})
    await hand.says("after")
    (update,) = (await hand.bot("getUpdates", offset=saved))["result"]
    assert (update["update_id"], update["message"]["text"]) == (7, "after")
    refused = await hand.client.post("/control/settings", json={"next_update_id": 7})
    assert refused.status_code == 422


async def test_the_request_log_tells_what_was_asked_and_how_it_ended(hand: Hand) -> None:
    await hand.bot("sendMessage", chat_id=5, text="x")
    await hand.bot("sendMessage", chat_id=5, text="")
    await hand.bot("getMe")
    report = await hand.control("GET", "/requests?method=sendMessage&limit=1")
    assert report["counts"] == {"sendMessage": {"accepted": 1, "refused": 1}, "getMe": {"accepted": 1}}
    (last,) = report["requests"]
    assert (last["chat_id"], last["outcome"], last["status"]) == (5, "refused", 400)


async def test_health(hand: Hand) -> None:
    assert (await hand.client.get("/healthz")).json() == {"status": "ok"}


async def test_a_port_in_use_is_a_clear_error(hand: Hand) -> None:
    with pytest.raises(ConfigurationError, match="choose another port"):
        async with serve_telegram(port=hand.simulator.port, clock=ManualClock()):
            pass


async def test_the_mail_control_api_can_live_on_the_same_port() -> None:
    accounts = {"owner@home.example": "p"}
    async with (
        serve_mail("127.0.0.1", 0, 0, None, clock=ManualClock(), accounts=accounts) as mail,
        serving(extra_routes=mail.control_routes()) as hand,
    ):
        letter = {"from": "friend@elsewhere.example", "to": "owner@home.example", "text": "hello"}
        assert (await hand.client.post("/control/mail/messages", json=letter)).status_code == 201
        assert len(mail.store.messages("owner@home.example")) == 1
        assert (await hand.client.post("/control/mail/messages", json={})).status_code == 422
        await hand.says("hi")
        assert await hand.texts() == ["hi"]
        assert (await hand.client.get("/control/mail/nowhere")).status_code == 404
