"""Preferences and entitlements by every door of a running system: HTTP, MCP, the command line, a chat and a link."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from butlers.daemon.places import Places
from butlers.outbound.unsubscribe import Subscription, UnsubscribeLinks, load_key
from butlers.storage.embedded import EmbeddedPostgres
from butlers.switchboard.requests.inbox import MessageRef
from tests.integration.processes.command import butlers_here
from tests.scenarios.messenger_door import request_mailed
from tests.scenarios.switchboard_door import all_finished, call
from tests.system import OWNER_CHAT_ID, RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

PUBLIC = "https://letters.example.org/door"
ANNA_CHAT, STRANGER_CHAT = 4_711, 4_242


class CompanyEntitlements:
    """A company's own answer."""

    async def permissions_of(self, subjects: Any, *, organization_id: str | None) -> dict[str, frozenset[str]]:
        return {subject: frozenset({f"messages:send:{organization_id or 'none'}"}) for subject in subjects}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    folder = tmp_path_factory.mktemp("doors")
    async with running_system(folder, postgres_server, public_url=PUBLIC) as system:
        doors = {butler.name: system.url(butler.name) for butler in system.system.butlers}
        Places(system.settings.data_dir).announce({"doors": doors, "simulators": {}})
        yield system


@pytest_asyncio.fixture(loop_scope="module")
async def anna(running: RunningSystem) -> str:
    """A contact of her own for each test, who writes from a Telegram chat."""
    contact, now = uuid4(), running.clock.now()
    await running.database.execute("DELETE FROM shared.contacts WHERE NOT is_owner")
    await running.database.execute(
        "INSERT INTO shared.contacts (id, name, timezone, preferred_channel, created_at, updated_at)"
        " VALUES ($1, 'Anna Schmidt', 'Asia/Tokyo', 'telegram', $2, $2)",
        contact,
        now,
    )
    await running.database.execute(
        "INSERT INTO shared.contact_info (id, contact_id, type, value, created_at) VALUES ($1, $2, 'telegram', $3, $4)",
        uuid4(),
        contact,
        str(ANNA_CHAT),
        now,
    )
    return str(contact)


async def stored(running: RunningSystem, person: str) -> Any:
    query = "SELECT document::text FROM outbound.preferences WHERE subject_id = $1"
    text = await running.database.fetchval(query, person)
    return json.loads(text) if text else None


async def history(running: RunningSystem, subject: str) -> list[tuple[str, str]]:
    rows = await running.database.fetch(
        "SELECT action, changed_by FROM outbound.changes WHERE subject_id = $1 ORDER BY changed_at, id", subject
    )
    return [(row["action"], row["changed_by"]) for row in rows]


async def api(running: RunningSystem, verb: str, path: str, body: Any = None, *, status: int = 200) -> Any:
    response = await running.http.request(verb, running.url(path=f"/api{path}"), json=body, headers=running.bearer())
    assert response.status_code == status, response.text
    return response.json()


# --- HTTP ------------------------------------------------------------------------------------------------------------


async def test_an_operator_changes_and_reads_a_persons_preferences_over_http(running: RunningSystem, anna: str) -> None:
    at = "/people/telegram:4711/preferences"
    await api(running, "POST", f"{at}/choices", {"event": "invoice", "channel": "email", "choice": "no"})
    await api(running, "POST", f"{at}/quiet-hours", {"start": "22:00", "end": "07:00", "days": ["mon", "sun"]})
    muted = await api(running, "POST", f"{at}/mute", {"duration": "2h", "event": "news"})
    until = datetime.fromisoformat(muted["until"])
    assert timedelta(hours=1, minutes=59) < until - datetime.now(UTC) <= timedelta(hours=2)
    expected = {
        "notifications": {"matrix": {"invoice": {"email": False}}},
        "quietHours": [{"start_time": "22:00", "end_time": "07:00", "timezone": "Asia/Tokyo", "days_of_week": [1, 7]}],
        "mutes": [{"until": until.isoformat(), "event": "news"}],
    }
    assert await stored(running, anna) == expected
    shown = await api(running, "GET", "/people/Anna%20Schmidt/preferences")
    assert (shown["person"]["id"], shown["document"]) == (anna, expected)
    assert [change["changed_by"] for change in shown["changes"]] == ["operator:operator"] * 3

    await api(running, "POST", f"{at}/unmute")
    await api(running, "POST", f"{at}/quiet-hours", {"start": "off"})
    await api(running, "POST", f"{at}/choices", {"event": "invoice", "channel": "email", "choice": "unset"})
    assert await stored(running, anna) == {"notifications": {"matrix": {}}}
    await api(running, "POST", at, {"theme": "dark"})
    assert await stored(running, anna) == {"theme": "dark"}

    # What a person changes with psql is read at the next look, though this process remembers for an hour.
    await running.database.execute('UPDATE outbound.preferences SET document = \'{"by": "hand"}\'')

    async def by_hand() -> bool:
        return bool((await api(running, "GET", at))["document"] == {"by": "hand"})

    await running.until(by_hand)


@pytest.mark.parametrize(
    ("path", "body", "refusal"),
    [
        ("/people/Nobody/preferences/mute", {"duration": "2h"}, (404, "person")),
        ("/people/{anna}/preferences/mute", {"duration": "31d"}, (422, "duration")),
        ("/people/{anna}/preferences/mute", {"duration": "soon"}, (422, "duration")),
        ("/people/{anna}/preferences/mute", {}, (422, "duration")),
        ("/people/{anna}/preferences/quiet-hours", {"start": "25:00", "end": "07:00"}, (422, "start_time")),
        ("/people/{anna}/preferences/quiet-hours", {"start": "22:00"}, (422, "end")),
        (
            "/people/{anna}/preferences/quiet-hours",
            {"start": "22:00", "end": "07:00", "timezone": "Mars/Base"},
            (422, "timezone"),
        ),
        ("/people/{anna}/preferences/choices", {"event": "x", "channel": "Fax!", "choice": "no"}, (422, "channel")),
        ("/people/{anna}/preferences/choices", {"event": "x", "channel": "sms", "choice": "maybe"}, (422, "choice")),
        ("/people/{anna}/preferences", {"quietHours": "always"}, (422, "quietHours")),
        ("/defaults", {"channels": []}, (422, "channels")),
        ("/entitlements", {"subject": "finance", "permission": "all"}, (422, "permission")),
        ("/entitlements", {"subject": "telegram:1", "permission": "messages:*:*"}, (404, "subject")),
        ("/entitlements", {"subject": "finanse", "permission": "messages:*:*"}, (404, "subject")),
        ("/defaults", {"mutes": [{"until": "2020-01-01T00:00:00Z"}]}, (422, "mutes")),
    ],
)
async def test_bad_input_is_named_and_nothing_is_stored(
    running: RunningSystem, anna: str, path: str, body: Any, refusal: tuple[int, str]
) -> None:
    status, field = refusal
    answer = await api(running, "POST", path.format(anna=anna), body, status=status)
    assert field in [wrong["field"] for wrong in answer["error"]["fields"]], answer
    assert await stored(running, anna) is None
    assert await history(running, anna) == []


async def test_without_an_operators_token_nothing_is_changed(running: RunningSystem, anna: str) -> None:
    for path in (f"/people/{anna}/preferences/unmute", "/entitlements/revoke", "/defaults"):
        response = await running.http.post(running.url(path=f"/api{path}"), json={})
        assert response.status_code == 403, response.text
    assert await stored(running, anna) is None


async def test_defaults_of_an_organization_and_of_the_system(running: RunningSystem) -> None:
    organization = {"notifications": {"matrix": {"invoice": {"sms": True}}}}
    await api(running, "POST", "/organizations/acme/preferences", organization)
    await api(running, "POST", "/defaults", {"channels": ["email", "telegram"]})
    rows = await running.database.fetch("SELECT scope, document FROM outbound.defaults")
    assert {row["scope"]: row["document"] for row in rows} == {
        "organization:acme": organization,
        "system": {"channels": ["email", "telegram"]},
    }
    assert (await api(running, "GET", "/organizations/acme/preferences"))["document"] == organization
    shown = await api(running, "GET", "/defaults")
    assert shown["document"] == {"channels": ["email", "telegram"]}
    assert shown["changes"][0]["changed_by"] == "operator:operator"
    assert (await api(running, "GET", "/organizations/other/preferences"))["document"] is None


async def test_entitlements_over_http(running: RunningSystem, anna: str) -> None:
    await api(running, "POST", "/entitlements", {"subject": "role:staff", "permission": "messages:send:sms"})
    await api(running, "POST", "/entitlements/join", {"subject": "telegram:4711", "role": "staff"})
    denied = {"subject": anna, "permission": "!messages:receive:email", "organization": "acme"}
    assert await api(running, "POST", "/entitlements", denied) == {"subject": anna, "changed": True}
    assert (await api(running, "POST", "/entitlements", denied))["changed"] is False
    shown = await api(running, "GET", f"/entitlements?subject={anna}&organization=acme")
    assert shown["effective"] == [
        "!messages:receive:email",
        "messages:receive:*",
        "messages:send:*",
        "messages:send:sms",
    ]
    assert [row["role"] for row in shown["memberships"]] == ["staff"]
    first = await api(running, "GET", "/entitlements?limit=2")
    second = await api(running, "GET", f"/entitlements?limit=2&cursor={first['next_cursor']}")
    subjects = [row["subject_id"] for row in (*first["entitlements"], *second["entitlements"])]
    assert sorted(subjects) == sorted(["role:everyone", "role:everyone", "role:staff", anna])
    assert second["next_cursor"] is None
    await api(running, "GET", "/entitlements?cursor=what", status=422)

    for body in ({"subject": anna, "permission": "!messages:receive:email", "organization": "acme"},):
        assert (await api(running, "POST", "/entitlements/revoke", body))["changed"] is True
    assert (await api(running, "POST", "/entitlements/leave", {"subject": anna, "role": "staff"}))["changed"] is True
    path = "/entitlements?subject=role:staff&permission=messages:send:sms"
    assert (await api(running, "DELETE", path))["changed"] is True
    assert await running.database.fetchval("SELECT count(*) FROM outbound.entitlements") == 2


# --- MCP -------------------------------------------------------------------------------------------------------------


async def test_a_butler_may_mute_a_person_and_may_not_decide_who_is_entitled(running: RunningSystem, anna: str) -> None:
    async with running.mcp("switchboard", caller="finance") as client:
        assert "until" in await call(client, "preferences.mute", {"person": anna, "duration": "1h"})
        choice = {"person": anna, "event": "invoice", "channel": "email", "choice": "yes"}
        assert (await call(client, "preferences.set", choice))["document"]["notifications"]
        for tool, arguments in (
            ("preferences.replace", {"person": anna, "document": {}}),
            ("preferences.replace_defaults", {"document": {}}),
            ("entitlements.grant", {"subject": "finance", "permission": "messages:*:*"}),
        ):
            refused = await call(client, tool, arguments)
            assert refused["error"]["message"].endswith(f"may not call {tool}")
        wrong = await call(client, "preferences.quiet_hours", {"person": anna, "start": "10pm", "end": "07:00"})
        assert wrong["error"]["fields"][0]["field"] == "start_time"
    assert await history(running, anna) == [("mute", "butler:finance"), ("set", "butler:finance")]


# --- the command line ------------------------------------------------------------------------------------------------


async def cli(running: RunningSystem, *words: str, code: int = 0) -> str:
    given = (*words, "--data-dir", running.settings.data_dir)
    completed = await asyncio.to_thread(butlers_here, *given)
    assert completed.returncode == code, completed.stderr
    return completed.stdout + completed.stderr


async def test_the_command_line(running: RunningSystem, anna: str) -> None:
    assert "the defaults decide" in await cli(running, "preferences", "show", "telegram:4711")
    assert "invoice: email no" in await cli(running, "preferences", "set", anna, "invoice", "email", "no")
    quiet = ("preferences", "quiet-hours", "Anna Schmidt", "22:00", "07:00")
    said = await cli(running, *quiet, "--timezone", "Europe/Berlin", "--days", "mon,tue")
    assert "quiet from 22:00 to 07:00 (Europe/Berlin), 1, 2" in said
    assert "is muted until" in await cli(running, "preferences", "mute", anna, "until 18:00", "--event", "news")
    document = await stored(running, anna)
    assert document["quietHours"][0]["days_of_week"] == [1, 2] and document["mutes"][0]["event"] == "news"
    assert "for news" in await cli(running, "preferences", "show", anna)
    await cli(running, "preferences", "unmute", anna)
    await cli(running, "preferences", "quiet-hours", anna, "off")
    assert await stored(running, anna) == {"notifications": {"matrix": {"invoice": {"email": False}}}}
    assert await cli(running, "preferences", "defaults")
    assert "nothing is stored" in await cli(running, "preferences", "organization", "unknown")

    assert "names no contact" in await cli(running, "preferences", "mute", "Nobody", "2h", code=2)
    assert "duration" in await cli(running, "preferences", "mute", anna, "soon", code=2)

    assert "done" in await cli(running, "entitlements", "grant", anna, "!messages:receive:sms")
    assert "so already" in await cli(running, "entitlements", "grant", anna, "!messages:receive:sms")
    assert "done" in await cli(running, "entitlements", "join", anna, "staff")
    listed = await cli(running, "entitlements", "list", "--subject", anna)
    assert "!messages:receive:sms" in listed and "role:staff" in listed
    assert "done" in await cli(running, "entitlements", "revoke", anna, "!messages:receive:sms")
    assert "done" in await cli(running, "entitlements", "leave", anna, "staff")
    assert "role:everyone" in await cli(running, "entitlements")


# --- a chat ----------------------------------------------------------------------------------------------------------


async def answered(running: RunningSystem, chat: int, number: int) -> list[str]:
    """What the bot wrote there, as soon as there are so many."""

    async def there() -> list[str]:
        written = await running.answers(chat)
        return written if len(written) >= number else []

    return await running.until(there)


async def last_request(running: RunningSystem, text: str) -> UUID:
    query = (
        "SELECT request_id FROM switchboard.message_inbox WHERE normalized_text = $1 ORDER BY received_at DESC LIMIT 1"
    )
    request: UUID = await running.database.fetchval(query, text)
    return request


async def test_a_person_mutes_and_unmutes_in_a_chat(running: RunningSystem, anna: str) -> None:
    before = len(await running.answers(ANNA_CHAT))
    await running.says("/mute 2h invoice", chat=ANNA_CHAT)
    answer = (await answered(running, ANNA_CHAT, before + 1))[-1]
    assert "No messages about invoice until" in answer and "Asia/Tokyo" in answer
    [mute] = (await stored(running, anna))["mutes"]
    request_id = await last_request(running, "/mute 2h invoice")
    received = await running.database.fetchval(
        "SELECT received_at FROM switchboard.message_inbox WHERE request_id = $1", request_id
    )
    assert (mute["event"], datetime.fromisoformat(mute["until"])) == ("invoice", received + timedelta(hours=2))

    # The request is on record and ended as every other one; no butler and no model was asked.
    trace = await running.finished(str(request_id))
    assert trace["lifecycle_state"] == "parsed"
    targets = await running.database.fetch(
        "SELECT target_butler, success, router FROM switchboard.routing_log WHERE request_id = $1", request_id
    )
    assert [tuple(row) for row in targets] == [("switchboard", True, "policy")]
    assert [f"[switchboard] {text}" for text in trace["reply"]["answers"].values()] == [answer]
    assert (await history(running, anna))[-1] == ("mute", f"telegram:{ANNA_CHAT}")
    origins = await running.database.fetch(
        "SELECT origin_butler, intent FROM messenger.delivery_requests WHERE request_id = $1", request_id
    )
    assert [tuple(row) for row in origins] == [("switchboard", "reply")]

    await running.says("/unmute", chat=ANNA_CHAT)
    await answered(running, ANNA_CHAT, before + 2)
    await running.says("/quiet 22:00-07:00", chat=ANNA_CHAT)
    await answered(running, ANNA_CHAT, before + 3)
    await running.says("/mute until 18:00", chat=ANNA_CHAT)
    last = (await answered(running, ANNA_CHAT, before + 4))[-1]
    assert "18:00 (Asia/Tokyo)" in last
    document = await stored(running, anna)
    assert [window["timezone"] for window in document["quietHours"]] == ["Asia/Tokyo"]
    assert len(document["mutes"]) == 1 and "event" not in document["mutes"][0]


async def test_a_repeated_update_and_a_repeated_attempt_do_it_once(running: RunningSystem, anna: str) -> None:
    envelope = running.envelope("/mute 3h", external_thread_id=str(ANNA_CHAT)) | {
        "source": {"channel": "telegram", "provider": "telegram", "endpoint_identity": "butlers_sim_bot"},
        "sender": {"identity": str(ANNA_CHAT)},
    }
    replies = [
        (await running.http.post(running.url(path="/api/ingest"), json=envelope, headers=running.bearer())).json()
        for _ in range(2)
    ]
    assert [reply["duplicate"] for reply in replies] == [False, True]
    request_id = replies[0]["request_id"]
    await running.finished(request_id)
    first = await stored(running, anna)
    answers = await running.answers(ANNA_CHAT)

    # As after a crash between the change and the end of the request: it is worked on again.
    row = await running.database.fetchrow(
        "UPDATE switchboard.message_inbox SET lifecycle_state = 'accepted', final_state_at = NULL"
        " WHERE request_id = $1 RETURNING received_at, policy_tier",
        UUID(request_id),
    )
    assert row is not None
    buffer: Any = getattr(running.butler("switchboard").service("buffer").run, "__self__", None)
    buffer.offer(MessageRef(request_id=UUID(request_id), **dict(row)))
    await running.finished(request_id)
    assert await stored(running, anna) == first
    assert await running.answers(ANNA_CHAT) == answers
    assert await history(running, anna) == [("mute", f"telegram:{ANNA_CHAT}")]


async def test_a_command_that_is_not_understood_is_explained_and_changes_nothing(
    running: RunningSystem, anna: str
) -> None:
    before = len(await running.answers(ANNA_CHAT))
    await running.says("/mute for a while", chat=ANNA_CHAT)
    answer = (await answered(running, ANNA_CHAT, before + 1))[-1]
    assert "That did not work: duration" in answer and "/mute 2h" in answer
    assert await stored(running, anna) is None
    trace = await running.finished(str(await last_request(running, "/mute for a while")))
    assert trace["lifecycle_state"] == "parsed"


async def test_other_slash_texts_and_strangers_go_the_usual_way(running: RunningSystem, anna: str) -> None:
    before = len(await running.answers(ANNA_CHAT))
    await running.says("/paid I paid the gardener 20 euros", chat=ANNA_CHAT)
    await answered(running, ANNA_CHAT, before + 1)
    await running.says("/mute 2h", chat=STRANGER_CHAT)
    await answered(running, STRANGER_CHAT, 1)
    await all_finished(running)
    rows = await running.database.fetch(
        "SELECT log.target_butler FROM switchboard.routing_log AS log JOIN switchboard.message_inbox USING (request_id)"
        " WHERE normalized_text = ANY($1)",
        ["/paid I paid the gardener 20 euros", "/mute 2h"],
    )
    assert len(rows) == 2 and "switchboard" not in {row["target_butler"] for row in rows}
    assert await stored(running, anna) is None


async def test_a_mail_whose_first_line_is_a_command_is_carried_out_and_answered(
    running: RunningSystem, anna: str
) -> None:
    address = "anna@friends.example"
    await running.database.execute(
        "INSERT INTO shared.contact_info (id, contact_id, type, value, created_at) VALUES ($1, $2, 'email', $3, $4)",
        uuid4(),
        UUID(anna),
        address,
        running.clock.now(),
    )
    headers = {"Message-ID": f"<{uuid4().hex}@friends.example>", "Subject": "hello", "From": address}
    text = "hello\n/mute 1d\n-- \nAnna"
    request_id = await request_mailed(running, text, sender=address, headers=headers)
    trace = await running.finished(request_id)
    assert trace["lifecycle_state"] == "parsed"
    assert len((await stored(running, anna))["mutes"]) == 1
    assert await history(running, anna) == [("mute", f"email:{address}")]
    row = await running.database.fetchrow(
        "SELECT origin_butler, channel, target_identity FROM messenger.delivery_requests WHERE request_id = $1",
        UUID(request_id),
    )
    assert row is not None and tuple(row) == ("switchboard", "email", address)


async def test_the_owner_quiets_and_ends_it(running: RunningSystem) -> None:
    owner = str(await running.database.fetchval("SELECT id FROM shared.contacts WHERE is_owner"))
    before = len(await running.answers(OWNER_CHAT_ID))
    await running.says("/quiet 23:00-06:00", chat=OWNER_CHAT_ID)
    assert "(UTC)" in (await answered(running, OWNER_CHAT_ID, before + 1))[-1]
    assert (await stored(running, owner))["quietHours"][0]["start_time"] == "23:00"
    await running.says("/quiet off", chat=OWNER_CHAT_ID)
    await answered(running, OWNER_CHAT_ID, before + 2)
    assert "quietHours" not in await stored(running, owner)


# --- a link ----------------------------------------------------------------------------------------------------------


async def test_a_link_unsubscribes_by_post_alone_and_once(running: RunningSystem, anna: str) -> None:
    links = UnsubscribeLinks(key=load_key(Places(running.settings.data_dir).unsubscribe_key), public_url=PUBLIC)
    link = links.url_for(anna, "news <b>", "email")
    assert link is not None and link.startswith(f"{PUBLIC}/unsubscribe/")
    url = running.url(path=link.removeprefix(PUBLIC))
    proxied = {"Host": "letters.example.org", "Origin": "https://letters.example.org"}

    page = await running.http.get(url, headers=proxied)
    assert page.status_code == 200 and 'method="post"' in page.text and "news &lt;b&gt;" in page.text
    assert await stored(running, anna) is None

    form = {"List-Unsubscribe": "One-Click"}
    for _ in range(3):
        assert (await running.http.post(url, data=form, headers=proxied)).status_code == 200
    assert (await running.http.post(url, headers=proxied)).status_code == 200
    assert (await running.http.post(url, files={"List-Unsubscribe": (None, "One-Click")})).status_code == 200
    assert await stored(running, anna) == {"notifications": {"matrix": {"news <b>": {"email": False}}}}
    assert await history(running, anna) == [("set", "unsubscribe link")]

    assert (await running.http.post(url, data={"something": "else"})).status_code == 400
    assert (await running.http.post(url, content=b"x" * 5_000)).status_code == 413
    assert (await running.http.put(url)).status_code == 405
    nowhere = await running.http.get(running.url(path="/nowhere"))
    token = link.rpartition("/")[2]
    for wrong in (token[:-2] + "AA", token.partition(".")[0], "x", "%ff", "." * 40, token + "." + token):
        answer = await running.http.post(running.url(path=f"/unsubscribe/{wrong}"), data=form)
        assert (answer.status_code, answer.text) == (404, nowhere.text), wrong


async def test_links_work_where_every_other_caller_needs_a_token_and_are_bounded(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> None:
    folder = tmp_path_factory.mktemp("guarded")
    service = f"{__name__}:CompanyEntitlements"
    async with running_system(folder, postgres_server, api_token_required=True, entitlement_service=service) as guarded:
        assert (await guarded.http.get(guarded.url(path="/api/entitlements"))).status_code == 401
        key = load_key(Places(guarded.settings.data_dir).unsubscribe_key)
        links = UnsubscribeLinks(key=key, public_url=None)
        assert links.url_for("a", "b", "c") is None
        token = links.token(Subscription(person="somebody", event="news", channel="sms"))
        url = guarded.url(path=f"/unsubscribe/{token}")
        assert (await guarded.http.post(url)).status_code == 200
        assert await stored(guarded, "somebody") == {"notifications": {"matrix": {"news": {"sms": False}}}}
        # Who floods the door, with a link of ours or with another, keeps no other person from unsubscribing.
        for flood, usual in ((url, 200), (guarded.url(path="/unsubscribe/wrong"), 404)):
            answers = await asyncio.gather(*(guarded.http.get(flood) for _ in range(300)))
            assert {answer.status_code for answer in answers} == {usual, 429}
        other = links.token(Subscription(person="another", event="news", channel="sms"))
        assert (await guarded.http.post(guarded.url(path=f"/unsubscribe/{other}"))).status_code == 200
        assert await stored(guarded, "another") == {"notifications": {"matrix": {"news": {"sms": False}}}}

        # The company's own service answers who may send.
        shown = await api(guarded, "GET", "/entitlements?subject=finance&organization=acme")
        assert shown["effective"] == ["messages:send:acme"]
