"""The command line and the API where people slip: filters that go on, words that fit what happened, errors that
machines can read, and mistakes that are named.
"""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import uuid4

import pytest

from butlers.butler.identity import OPERATOR
from tests.scenarios.messenger_door import call, deliver, fault, rows, sends, wish
from tests.scenarios.shared_system import running, system
from tests.scenarios.test_messenger_cli import api, cli, document, lines
from tests.scenarios.test_messenger_tools import delivered, failed, set_aside
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def complaint(running: RunningSystem, *arguments: str, code: int) -> dict[str, Any]:
    """The error that a machine reads: one JSON document on standard output, and nothing beside it."""
    completed = await cli(running, *arguments, "--json", code=code)
    assert completed.stderr == ""
    [line] = completed.stdout.splitlines()
    told: dict[str, Any] = json.loads(line)
    assert list(told) == ["error"]
    error: dict[str, Any] = told["error"]
    return error


# --- listings --------------------------------------------------------------------------------------------------------


async def test_the_next_page_is_asked_for_with_the_same_filters(running: RunningSystem) -> None:
    for number in range(3):
        await delivered(running, f"note {number}", origin_butler="finance")
        await delivered(running, f"other {number}")
    asked = ["deliveries", "list", "--origin", "finance", "--status", "delivered", "--limit", "1"]
    seen = []
    while asked:
        page = await lines(running, *asked)
        seen += [line.split()[0] for line in page if not line.startswith("more: ")]
        hint = next((line.removeprefix("more: butlers ") for line in page if line.startswith("more: ")), "")
        asked = hint.split()
        if asked:
            assert hint.startswith("deliveries list --origin finance --status delivered --limit 1 --cursor ")
    assert seen == [str(row["id"]) for row in reversed(await rows(running)) if row["origin_butler"] == "finance"]
    assert len(seen) == 3


async def test_dead_letters_and_recipients_go_on_with_their_filters(running: RunningSystem) -> None:
    for chat in ("81", "82"):
        await set_aside(running, await failed(running, chat))
    [*_, hint] = await lines(running, "dead-letters", "list", "--channel", "telegram", "--discarded", "--limit", "1")
    assert hint.startswith("more: butlers dead-letters list --channel telegram --discarded --limit 1 --cursor ")
    assert len(await lines(running, *hint.removeprefix("more: butlers ").split())) == 2
    [_, hint] = await lines(running, "deliveries", "recipients", "--channel", "telegram", "--limit", "1")
    [rest] = await lines(running, *hint.removeprefix("more: butlers ").split())
    assert rest.startswith("telegram  82  suppressed")


async def test_requests_go_on_with_their_filters(running: RunningSystem) -> None:
    for text in ("I paid the electricity bill", "I paid the gas bill"):
        reply = await running.ingest(text)
        await running.finished(reply["request_id"])
    [first, hint] = await lines(running, "requests", "--state", "parsed", "--limit", "1")
    assert hint == f"more: butlers requests --state parsed --limit 1 --before {first.split()[0]}"


async def test_suggested_commands_repeat_where_the_system_is(running: RunningSystem) -> None:
    where = ("--data-dir", str(running.settings.data_dir))
    said = " ".join(where)
    ids = [await delivered(running, f"read: butlers why {number}") for number in range(2)]
    [_, hint] = await lines(running, "deliveries", "list", "--limit", "1", *where)
    assert hint.startswith(f"more: butlers deliveries list {said} --limit 1 --cursor ")
    [older] = await lines(running, *hint.removeprefix("more: butlers ").split())
    assert older.split()[0] == ids[0]
    shown = await lines(running, "deliveries", "show", ids[0], *where)
    assert shown[-1] == f"  more      butlers why {said} {ids[0]}"
    assert "  message   [health] read: butlers why 0" in shown, "what others wrote stays as it is"
    [_, hint] = await lines(running, "ingest", "I paid the rent", *where)
    assert hint.startswith(f"follow it with: butlers trace {said} ")
    await running.finished(hint.split()[-1])
    # Found without being told, it is not repeated.
    [_, hint] = await lines(running, "deliveries", "list", "--limit", "1")
    assert "--data-dir" not in hint


async def test_a_delivery_is_shown_with_its_words_and_labelled_attempts(running: RunningSystem) -> None:
    delivery = await delivered(running, "two\nlines")
    shown = await lines(running, "deliveries", "show", delivery)
    place = shown.index("  message   [health] two")
    assert shown[place + 1] == "            lines"
    [attempt] = [line for line in shown if line.startswith("  attempt 1  ")]
    assert re.fullmatch(
        r"  attempt 1  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  outcome \w+, certainty sent, took \d+ ms", attempt
    )


async def test_nothing_found_for_an_origin_that_nobody_is_called(running: RunningSystem) -> None:
    [note] = await lines(running, "deliveries", "list", "--origin", "ghost")
    assert note.startswith("no butler is called 'ghost'; there are finance, general, ")
    assert await lines(running, "deliveries", "list", "--origin", "finance") == ["no deliveries"]


# --- why -------------------------------------------------------------------------------------------------------------


async def test_why_takes_the_id_of_a_dead_letter(running: RunningSystem) -> None:
    delivery = await failed(running, "83")
    letter = await set_aside(running, delivery)
    told = await lines(running, "why", letter)
    assert told[:2] == [f"dead letter {letter} is about", f"delivery {delivery}: dead_lettered"]
    assert told[2:] == (await lines(running, "why", delivery))[1:]
    explained = await document(running, "why", letter)
    assert explained["asked_about"] == {"kind": "dead_letter", "id": letter}
    assert (await api(running, "GET", f"/deliveries/{letter}/why")).json() == explained


async def test_why_says_who_asked_for_a_second_sending_and_not_that_it_arrived(running: RunningSystem) -> None:
    uncertain = []
    for message in ("it arrived", "send it again"):
        await fault(running, "drop_after")
        uncertain.append((await deliver(running, wish(message)))["delivery"]["delivery_id"])
    arrived, again = uncertain
    await lines(running, "deliveries", "settle", arrived, "confirmed_sent")
    await lines(running, "deliveries", "settle", again, "send_again")
    told = "\n".join(await lines(running, "why", arrived))
    assert "It was delivered, as operator said, at " in told
    assert "Operator confirmed it as sent at " in told
    assert "The provider reported" not in told
    told = "\n".join(await lines(running, "why", again))
    assert "It was delivered when it was sent again, as operator asked, at " in told
    assert "operator said" not in told


async def test_why_does_not_promise_a_worker_while_the_circuit_is_open(running: RunningSystem) -> None:
    delivery = await delivered(running, "hello")
    moment = running.clock.now()
    await running.database.execute(
        "update messenger.delivery_requests set status = 'awaiting_retry', next_attempt_at = $2, terminal_at = null"
        " where id = $1::uuid",
        delivery,
        moment,
    )
    await running.database.execute(
        "update messenger.channel_states set state = 'open', generation = generation + 1, trip_reason = 'it failed',"
        " tripped_at = $1, probe_at = $1::timestamptz + interval '1 hour' where name = 'telegram.bot'",
        moment,
    )
    told = "\n".join(await lines(running, "why", delivery))
    assert "It is due, but something stands in its way." in told
    assert "The channel's circuit is open: it failed. Nothing goes out by it, and it is tried again at " in told
    assert "taken by the next free worker" not in told


# --- dry run and recipients ------------------------------------------------------------------------------------------


async def test_a_dry_run_knows_suppressed_recipients_mail_addresses_and_origins(running: RunningSystem) -> None:
    await lines(running, "deliveries", "suppress", "telegram", "84", "--reason", "asked us to stop")
    [first, why, *_] = await lines(running, "deliveries", "dry-run", "hello", "--to", "84", code=1)
    assert first == "suppressed: to 84 by telegram.bot"
    assert "asked us to stop" in why
    mail = ("deliveries", "dry-run", "hello", "--channel", "email", "--subject", "s", "--to")
    assert (await lines(running, *mail, "friend@elsewhere.example"))[0].startswith("admitted: ")
    [first, why] = await lines(running, *mail, "friend at elsewhere", code=1)
    assert (first, "is not a mail address" in why) == ("invalid", True)
    really = await deliver(running, wish("hello", channel="email", subject="s", recipient="friend at elsewhere"))
    assert (really["error"]["class"], "not a mail address" in really["error"]["message"]) == ("validation_error", True)
    [first, why] = await lines(running, "deliveries", "dry-run", "hello", "--origin", "nobody", code=1)
    assert (first, "is no butler here; there are finance, general" in why) == ("invalid", True)


@pytest.mark.parametrize(
    ("channel", "target"), [("email", "friend"), ("telegram", "ann smith"), ("telegram", "7x"), ("sms", "call me")]
)
async def test_only_an_address_of_the_channel_is_suppressed(running: RunningSystem, channel: str, target: str) -> None:
    error = await complaint(running, "deliveries", "suppress", channel, target, "--reason", "typed in a hurry", code=2)
    assert error["class"] == "validation_error"
    assert error["message"].startswith("target: is not a ")
    assert await lines(running, "deliveries", "recipients") == ["nobody is held back"]


@pytest.mark.parametrize(
    ("channel", "target"),
    [("email", "friend@elsewhere.example"), ("telegram", "-1007"), ("telegram", "@ann_s"), ("sms", "+15550100")],
)
async def test_what_looks_like_an_address_is_suppressed(running: RunningSystem, channel: str, target: str) -> None:
    await lines(running, "deliveries", "suppress", channel, target, "--reason", "asked us to stop")
    [held] = await lines(running, "deliveries", "recipients")
    assert held.startswith(f"{channel}  {target}  suppressed")
    for verb in ("unsuppress", "release"):  # the older name
        await lines(running, "deliveries", verb, channel, target)
        assert await lines(running, "deliveries", "recipients") == ["nobody is held back"]
        await lines(running, "deliveries", "suppress", channel, target, "--reason", "asked us to stop")


# --- errors ----------------------------------------------------------------------------------------------------------


async def test_with_json_an_error_is_json_too(running: RunningSystem) -> None:
    missing = await complaint(running, "deliveries", "show", str(uuid4()), code=2)
    assert (missing["class"], missing["retryable"]) == ("validation_error", False)
    assert "no such delivery" in missing["message"]
    assert "must be a UUID" in (await complaint(running, "why", "seven", code=2))["message"]
    usage = await complaint(running, "deliveries", "list", "--limit", "0", code=2)
    assert (usage["class"], "--limit" in usage["message"]) == ("validation_error", True)
    assert "surprise" in (await complaint(running, "deliveries", "surprise", code=2))["message"]


async def test_a_wrong_id_is_told_in_the_same_words_at_every_door(running: RunningSystem) -> None:
    error = await complaint(running, "deliveries", "show", "seven", code=2)
    assert error["fields"] == [{"field": "id", "error": "must be a UUID"}]
    answer = await api(running, "GET", "/deliveries/seven")
    error = answer.json()["error"]
    assert (answer.status_code, error["message"]) == (422, "delivery_id: must be a UUID")
    assert error["fields"] == [{"field": "delivery_id", "error": "must be a UUID"}]
    told = await call(running, "messenger", "messenger_delivery_status", {"delivery_id": "seven"}, caller=OPERATOR)
    assert told["error"]["message"] == "delivery_id must be a UUID"
    answer = await api(running, "GET", "/deliveries?limit=0")
    assert answer.json()["error"]["message"] == "limit: must be greater than or equal to 1"


@pytest.mark.parametrize("said", ["yesterday", "2026-01-31", "2026-01-31T09:00:00"])
async def test_a_wrong_moment_is_answered_with_an_example(running: RunningSystem, said: str) -> None:
    error = await complaint(running, "deliveries", "list", "--since", said, code=2)
    assert "2026-01-31T09:00:00Z" in error["message"]
    assert error["fields"][0]["field"] == "--since"
    assert await lines(running, "deliveries", "list", "--since", "2026-01-31T09:00:00Z") == ["no deliveries"]


async def test_a_butler_that_nobody_knows_is_not_one_that_is_away(running: RunningSystem) -> None:
    for verb, path in (("GET", ""), ("GET", "/count"), ("POST", f"/{uuid4()}/approve"), ("POST", "/rules")):
        answer = await api(running, verb, f"/approvals{path}?butler=ghost")
        error = answer.json()["error"]
        assert (answer.status_code, error["class"], error["retryable"]) == (404, "validation_error", False)
        assert error["message"].startswith("butler: is no butler here; there are finance, general, ")
    error = await complaint(running, "approvals", "list", "--butler", "ghost", code=2)
    assert error["message"].startswith("butler: is no butler here; there are finance, ")


async def test_approvals_that_are_off_say_how_they_are_switched_on(running: RunningSystem) -> None:
    error = await complaint(running, "approvals", "list", "--butler", "finance", code=2)
    assert error["message"].startswith(
        "butler: approvals are off for finance: add [modules.approvals] to its butler.toml"
    )


async def test_a_message_for_nobody_is_refused_at_every_door(running: RunningSystem) -> None:
    before = await running.database.fetchval("select count(*) from switchboard.message_inbox")
    error = await complaint(running, "ingest", "hello", "--to", "nobody", code=2)
    assert error["fields"] == [
        {
            "field": "control.pinned_target",
            "error": "is no butler here; there are finance, general, health, relationship, travel",
        }
    ]
    envelope = running.envelope("hello") | {"control": {"pinned_target": "nobody"}}
    answer = await api(running, "POST", "/ingest", json=envelope)
    assert (answer.status_code, answer.json()["error"]["class"]) == (422, "validation_error")
    told = await call(running, "switchboard", "ingest", envelope)
    assert told["error"]["class"] == "validation_error"
    assert await running.database.fetchval("select count(*) from switchboard.message_inbox") == before
    accepted = await document(running, "ingest", "hello", "--to", "travel")
    await running.finished(accepted["request_id"])


@pytest.mark.parametrize("path", ["/deliveries", "/dead-letters", "/approvals", "/requests", "/recipients", "/butlers"])
async def test_an_unknown_query_key_is_named(running: RunningSystem, path: str) -> None:
    answer = await api(running, "GET", f"{path}?chanel=telegram")
    error = answer.json()["error"]
    assert (answer.status_code, error["class"]) == (422, "validation_error")
    assert error["fields"][0]["field"] == "chanel"
    assert "chanel" in error["message"]


async def test_a_decision_needs_no_body_and_then_no_content_type(running: RunningSystem) -> None:
    letter = await set_aside(running, await failed(running, "85"))
    for path in (f"/approvals/{uuid4()}/approve", f"/dead-letters/{letter}/discard"):
        answer = await api(running, "POST", path)
        assert answer.status_code in (404, 422), answer.text
        assert answer.json()["error"]["class"] == "validation_error"
        # Whatever is said has to say that it is JSON.
        assert (await api(running, "POST", path, content=b'{"reason": "x"}')).status_code == 415


async def test_a_send_that_fails_says_which_delivery_it_was(running: RunningSystem) -> None:
    await running.control("POST", "/users/86/block")
    answer = await call(
        running, "messenger", "telegram_send_message", {"message": "hello", "recipient": "86"}, caller=OPERATOR
    )
    [row] = await rows(running)
    assert (answer["status"], answer["error"]["class"]) == ("error", row["terminal_error_class"])
    assert (answer["delivery"]["delivery_id"], answer["delivery"]["status"]) == (str(row["id"]), "failed")
    # Refused at the door, there is none.
    await lines(running, "deliveries", "suppress", "telegram", "87", "--reason", "asked us to stop")
    before = await sends(running)
    answer = await call(
        running, "messenger", "telegram_send_message", {"message": "hello", "recipient": "87"}, caller=OPERATOR
    )
    assert (answer["status"], "delivery" in answer) == ("error", False)
    assert await sends(running) == before
