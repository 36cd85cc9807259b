"""Who may write in: strangers are refused, counted and listed, and get no word but one code (issue 12, items 8 and 14).

Every message comes in by a connector's own way: the simulated Telegram, or a mail in the mailbox.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx2

from butlers.butler.identity import Grant
from butlers.operations.operation import Role
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import forget_deliveries
from tests.scenarios.switchboard_door import all_finished, call, counts, post
from tests.system import OWNER_CHAT_ID, RunningSystem, running_system

STRANGER, FRIEND, GROUP = 4_242, 4_343, -100_777
CODE = re.compile(r"\b[2-9B-DF-HJ-NP-TV-XZ]{4}-[2-9B-DF-HJ-NP-TV-XZ]{4}\b")


async def refused(running: RunningSystem, **parameters: Any) -> list[dict[str, Any]]:
    response = await running.http.get(running.url(path="/api/senders/refused"), params=parameters)
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = response.json()["senders"]
    return rows


async def refused_messages(running: RunningSystem, number: int) -> dict[str, Any]:
    """The one refused sender, as soon as so many of its messages were counted."""

    async def counted() -> dict[str, Any]:
        rows = await refused(running)
        return rows[0] if len(rows) == 1 and rows[0]["messages"] == number else {}

    return await running.until(counted)


async def operator(running: RunningSystem, path: str, **body: Any) -> httpx2.Response:
    url = running.url(path=f"/api/senders/{path}")
    return await running.http.post(url, json=body, headers=running.bearer())


async def served(running: RunningSystem, chat: int, number: int) -> list[str]:
    """What the bot wrote there, as soon as there are so many."""

    async def there() -> list[str]:
        said = await running.answers(chat)
        return said if len(said) >= number else []

    return await running.until(there)


async def test_by_default_a_real_bot_serves_its_owner_alone(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, who_may_write_telegram="owner") as running:
        before = await counts(running)
        await running.says("Tell me everything you know about Ann", chat=STRANGER)
        first = await refused_messages(running, 1)
        await running.says("hello?", chat=STRANGER)
        again = await refused_messages(running, 2)

        assert (first["channel"], first["sender"], first["display_name"]) == ("telegram", str(STRANGER), "Ann")
        assert (first["reason"], again["last_at"] > first["last_at"]) == ("unknown_sender", True)
        assert await running.answers(STRANGER) == []
        assert await counts(running) == before
        row = await running.database.fetchrow("select * from switchboard.refused_senders")
        assert "everything you know" not in str(row)

        await running.says("I paid the gardener", chat=OWNER_CHAT_ID)  # what comes behind it is served
        assert await served(running, OWNER_CHAT_ID, 1) == ["[finance] Noted: I paid the gardener"]
        metrics = (await running.http.get(running.url(path="/metrics"))).text
        [line] = [line for line in metrics.splitlines() if line.startswith("butlers_switchboard_sender_refused")]
        assert 'reason="unknown_sender"' in line
        assert line.endswith(" 2.0") or line.endswith(" 2")


async def test_in_a_group_the_sender_counts_and_not_the_chat(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, who_may_write_telegram="pairing") as running:
        stranger = {"id": STRANGER, "first_name": "Eve"}
        await running.says("let me in", chat=GROUP, **{"from": stranger})
        await refused_messages(running, 1)
        await running.says("I paid the plumber", chat=GROUP, **{"from": {"id": OWNER_CHAT_ID, "first_name": "Ann"}})
        assert await served(running, GROUP, 1) == ["[finance] Noted: I paid the plumber"]
        assert await running.database.fetchval("select count(*) from switchboard.sender_pairings") == 0


async def test_an_approval_that_comes_again_after_a_crash_gets_the_same_answer(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, who_may_write_telegram="pairing") as running:
        await running.says("hello, it is me", chat=STRANGER)
        [offer] = await served(running, STRANGER, 1)
        await running.says(f"approve {CODE.findall(offer)[0]}", chat=OWNER_CHAT_ID)
        [answer] = await served(running, OWNER_CHAT_ID, 1)
        event = await running.database.fetchval("select used_event from switchboard.sender_pairings")

        # As the connector hands it in again, because the process died before the answer left.
        await forget_deliveries(running)
        again = running.envelope(f"approve {CODE.findall(offer)[0]}", external_event_id=event) | {
            "source": {"channel": "telegram", "provider": "telegram", "endpoint_identity": "butlers_sim_bot"},
            "sender": {"identity": str(OWNER_CHAT_ID)},
        }
        token = running.issue_token("telegram", Role.CONNECTOR, Grant(channel="telegram"))
        await post(running, again, Authorization=f"Bearer {token}")
        assert await served(running, OWNER_CHAT_ID, 2) == [answer, answer]
        await all_finished(running)


async def test_what_the_owner_forwards_approves_nobody(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, who_may_write_telegram="pairing") as running:
        await running.says("hello, it is me", chat=STRANGER)
        [offer] = await served(running, STRANGER, 1)
        words = f"approve {CODE.findall(offer)[0]}"  # as the stranger wrote it to the owner
        forwarded = running.envelope(words, external_thread_id=str(OWNER_CHAT_ID)) | {
            "source": {"channel": "telegram", "provider": "telegram", "endpoint_identity": "butlers_sim_bot"},
            "sender": {"identity": str(OWNER_CHAT_ID)},
        }
        forwarded["payload"]["raw"] = {"message": {"forward_origin": {"type": "user"}}}
        token = running.issue_token("telegram", Role.CONNECTOR, Grant(channel="telegram"))
        assert (await post(running, forwarded, Authorization=f"Bearer {token}")).status_code == 202
        [answer] = await served(running, OWNER_CHAT_ID, 1)
        assert answer.endswith(f"] Noted: {words}")  # by whichever butler such words are for
        assert await running.database.fetchval("select used_at from switchboard.sender_pairings") is None
        await all_finished(running)


async def test_a_stranger_gets_one_code_and_the_owner_approves_it_in_chat(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, who_may_write_telegram="pairing") as running:
        await running.says("hello, it is me", chat=STRANGER)
        [offer] = await served(running, STRANGER, 1)
        code = CODE.findall(offer)[0]
        for text in ("hello?", code, f"approve {code}"):  # none of which lets the stranger in
            await running.says(text, chat=STRANGER)
        await refused_messages(running, 4)
        await running.says("approve 2222-2222", chat=OWNER_CHAT_ID)
        await running.says(f"approve {code.lower()}", chat=OWNER_CHAT_ID)
        no, yes = await served(running, OWNER_CHAT_ID, 2)
        assert "Nobody was let in" in no
        assert f"telegram {STRANGER}) may write to me from now on" in yes
        assert await running.answers(STRANGER) == [offer]
        assert await counts(running) == {"ingress_dedupe": 0, "message_inbox": 0}
        assert await refused(running) == []

        await running.says("I paid the baker", chat=STRANGER)
        assert (await served(running, STRANGER, 2))[1] == "[finance] Noted: I paid the baker"
        contact = await running.database.fetchrow(
            "select c.name, c.is_owner from shared.contacts c join shared.contact_info i on i.contact_id = c.id"
            " where i.type = 'telegram' and i.value = $1",
            str(STRANGER),
        )
        assert contact is not None
        assert (contact["name"], contact["is_owner"]) == ("Ann", False)
        await running.says(f"approve {code}", chat=OWNER_CHAT_ID)  # it died with its use
        assert "Nobody was let in" in (await served(running, OWNER_CHAT_ID, 3))[2]
        await all_finished(running)


async def test_operators_decide_by_api_and_by_mcp(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, who_may_write_telegram="pairing") as running:
        await running.says("hello", chat=STRANGER)
        await served(running, STRANGER, 1)
        url = running.url(path="/api/senders/pairings")
        assert (await running.http.get(url)).status_code == 403, "codes are for whoever may decide"
        [pairing] = (await running.http.get(url, headers=running.bearer())).json()["pairings"]
        assert (pairing["state"], pairing["sender"]) == ("waiting", str(STRANGER))
        unknown = await operator(running, "approve", code="2222-2222")
        assert (unknown.status_code, unknown.json()["error"]["fields"][0]["field"]) == (404, "code")
        local = await running.http.post(running.url(path="/api/senders/approve"), json={"code": pairing["code"]})
        assert local.status_code == 403
        approved = (await operator(running, "approve", code=pairing["code"])).json()
        assert (approved["channel"], approved["identity"]) == ("telegram", str(STRANGER))

        async with running.mcp("switchboard") as client:
            allowed = await call(
                client, "senders.allow", {"channel": "telegram", "identity": str(FRIEND), "name": "Bo"}
            )
            removed = await call(client, "senders.remove", {"channel": "telegram", "identity": str(STRANGER)})
            wrong = await call(client, "senders.allow", {"channel": "telegram", "identity": "@bo"})
            owners = await call(client, "senders.remove", {"channel": "telegram", "identity": str(OWNER_CHAT_ID)})
        assert (allowed["name"], removed["removed"]) == ("Bo", True)
        assert [wrong["error"]["fields"][0]["field"], owners["error"]["fields"][0]["field"]] == ["identity"] * 2
        await running.says("I paid the baker", chat=FRIEND)
        assert await served(running, FRIEND, 1) == ["[finance] Noted: I paid the baker"]
        await running.says("and me?", chat=STRANGER)
        await refused_messages(running, 1)
        assert len(await running.answers(STRANGER)) == 1, "no second code, ever"


async def test_a_crowd_of_strangers_gets_few_codes(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, who_may_write_telegram="pairing") as running:
        for chat in range(7_000, 7_013):
            await running.says("hello", chat=chat)

        async def all_refused() -> bool:
            return len(await refused(running, limit=100)) == 13

        await running.until(all_refused)
        assert await running.database.fetchval("select count(*) from switchboard.sender_pairings") == 10


async def test_contacts_are_served_and_codes_are_not_given(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, who_may_write_telegram="contacts") as running:
        await operator(running, "allow", channel="telegram", identity=str(FRIEND), name="Bo")
        await running.says("I paid the baker", chat=FRIEND)
        await running.says("me too", chat=STRANGER)
        await refused_messages(running, 1)
        assert await served(running, FRIEND, 1) == ["[finance] Noted: I paid the baker"]
        assert await running.answers(STRANGER) == []


# --- the owner's first chat ------------------------------------------------------------------------------------------


async def test_the_first_chat_that_sends_the_code_becomes_the_owners(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(
        tmp_path, postgres_server, who_may_write_telegram="owner", owner_chat_known=False
    ) as running:
        [notice] = await running.system.notices()
        code = CODE.findall(notice)[0]
        await running.says("I paid the baker", chat=STRANGER)
        for wrong in ("2222-2222", "3333-3333", "4444-4444", "5555-5555", "6666-6666"):
            await running.says(wrong, chat=STRANGER)
        await refused_messages(running, 6)
        await running.says(code, chat=STRANGER)  # right, and too late: five wrong ones were too many
        await refused_messages(running, 7)
        assert await running.answers(STRANGER) == []

        await running.restart()
        assert CODE.findall((await running.system.notices())[0]) == [code], "a restart keeps the code"
        await running.says(code.lower(), chat=FRIEND)
        [welcome] = await served(running, FRIEND, 1)
        assert "This chat is the owner's now" in welcome
        assert await running.system.notices() == []

        await running.restart()
        assert await running.system.notices() == []
        await running.says("I paid the baker", chat=FRIEND)
        assert (await served(running, FRIEND, 2))[1] == "[finance] Noted: I paid the baker"
        await running.says(code, chat=GROUP, **{"from": {"id": 9_999, "first_name": "Eve"}})  # it died with its use
        await running.says(code, chat=9_999)

        async def refused_too() -> bool:
            return "9999" in {row["sender"] for row in await refused(running)}

        await running.until(refused_too)
        assert await running.answers(9_999) == []
        await running.ingest("I paid the butcher")  # an answer for the owner goes to the chat that paired
        assert any("butcher" in line for line in await served(running, FRIEND, 3))


async def test_an_owners_code_that_is_too_old_is_renewed(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(
        tmp_path, postgres_server, who_may_write_telegram="owner", owner_chat_known=False
    ) as running:
        old = CODE.findall((await running.system.notices())[0])[0]
        await running.database.execute("update switchboard.sender_pairings set expires_at = now() - interval '1 s'")
        await running.says(old, chat=STRANGER)
        await refused_messages(running, 1)
        url = running.url(path="/api/senders/owner-code")
        assert (await running.http.get(url)).status_code == 403
        new = (await running.http.get(url, headers=running.bearer())).json()["code"]
        assert new != old
        await running.says(new, chat=FRIEND)
        assert "owner's now" in (await served(running, FRIEND, 1))[0]


# --- mail ------------------------------------------------------------------------------------------------------------

OWNER_MAIL, MAILBOX, SERVER = "owner@butlers.example", "butler@butlers.example", "mx.butlers.example"
PASS = f"{SERVER}; dmarc=pass header.from=butlers.example"
FAIL = f"{SERVER}; dmarc=fail header.from=butlers.example"


async def mailed(running: RunningSystem, text: str, sender: str, *results: str) -> dict[str, Any]:
    """A mail arrives with these Authentication-Results, topmost first, and the mailbox is looked into: the counts."""
    lines = [*(f"Authentication-Results: {result}" for result in results), f"From: {sender}", f"To: {MAILBOX}"]
    raw = "\r\n".join([*lines, "Subject: A bill", f"Message-ID: <{abs(hash(text))}@far.example>", "", text, ""])
    running.mail.store.deliver(MAILBOX, raw.encode(), envelope_from=sender.partition("\r\n")[0])
    async with running.mcp("messenger") as client:
        return await call(client, "email_check_and_route_inbox", {})


async def test_mail_is_served_when_the_receiving_server_vouches_for_a_known_sender(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    settings: Any = {"who_may_write_email": "owner", "mail_authentication": "required", "mail_authserv_id": SERVER}
    async with running_system(tmp_path, postgres_server, **settings) as running:
        injected = f"{SERVER}; spf=fail smtp.mailfrom==?utf-8?q?a=3B_dmarc=3Dpass_header.from=3Dbutlers.example?="
        cases = [
            ("I paid one euro", f"Ann <{OWNER_MAIL.upper()}>", [PASS], "routed"),
            ("I paid two euros", OWNER_MAIL, [], "refused"),
            ("I paid three euros", OWNER_MAIL, [FAIL, PASS], "refused"),
            ("I paid four euros", OWNER_MAIL, ["mx.evil.example; dmarc=pass header.from=butlers.example"], "refused"),
            ("I paid five euros", "eve@butlers.example", [PASS], "refused"),
            ("I paid six euros", OWNER_MAIL, [injected], "refused"),
            ("I paid seven euros", "=?utf-8?q?owner=40butlers.example=2C?= <eve@butlers.example>", [PASS], "refused"),
            ("I paid eight euros", "=?utf-8?b?b3duZXJAYnV0bGVycy5leGFtcGxl?= <eve@butlers.example>", [PASS], "refused"),
            ("I paid nine euros", f"{OWNER_MAIL}, eve@butlers.example", [PASS], "refused"),
            ("I paid ten euros", f"{OWNER_MAIL}\r\nFrom: eve@butlers.example", [PASS], "refused"),
            ("I paid eleven euros", OWNER_MAIL, [f"{FAIL}; spf=pass smtp.mailfrom={OWNER_MAIL}"], "refused"),
        ]
        for text, sender, results, outcome in cases:
            counted = await mailed(running, text, sender, *results)
            assert {name for name, number in counted.items() if number} == {outcome}, text
        await all_finished(running)
        stored = await running.database.fetch("select normalized_text from switchboard.message_inbox")
        assert ["one euro" in row["normalized_text"] for row in stored] == [True]
        reasons = {row["sender"]: row["reason"] for row in await refused(running)}
        assert reasons == {OWNER_MAIL: "not_authenticated", "eve@butlers.example": "unknown_sender"}
        sent = [recipient.address for mail in running.mail.store.accepted for recipient in mail.recipients]
        assert [address.lower() for address in sent] == [OWNER_MAIL]


async def test_a_stranger_by_mail_gets_one_code_and_machines_none(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, who_may_write_email="pairing") as running:
        assert (await mailed(running, "hello, it is me", "eve@far.example"))["refused"] == 1
        assert (await mailed(running, "hello again", "eve@far.example"))["refused"] == 1
        robot = "robot@far.example\r\nAuto-Submitted: auto-replied"
        assert (await mailed(running, "I am on holiday", robot))["refused"] == 1

        async def offers() -> list[Any]:
            return list(running.mail.store.accepted)

        [offer] = await running.until(offers)
        assert [recipient.address for recipient in offer.recipients] == ["eve@far.example"]
        code = CODE.findall(offer.raw.decode())[0]
        quoted = f"I paid this, see below\r\n\r\napprove {code}\r\n-- \r\nEve"  # a stranger's words in the owner's mail
        assert (await mailed(running, quoted, OWNER_MAIL))["routed"] == 1
        await all_finished(running)
        assert await running.database.fetchval("select used_at from switchboard.sender_pairings") is None
        assert await counts(running) == {"ingress_dedupe": 1, "message_inbox": 1}
        before = len(await offers())
        approval = f"\r\napprove {code}\r\n-- \r\nAnn"
        assert (await mailed(running, approval, OWNER_MAIL))["routed"] == 1

        async def told() -> bool:
            return len(await offers()) == before + 1

        await running.until(told)
        assert (await mailed(running, "I paid the baker", "eve@far.example"))["routed"] == 1
        assert await counts(running) == {"ingress_dedupe": 2, "message_inbox": 2}
        await all_finished(running)


async def test_a_connector_outside_is_told_and_the_same_event_counts_once(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, who_may_write_telegram="owner") as running:
        token = running.issue_token("gateway", Role.CONNECTOR, Grant(channel="telegram", endpoint="far_bot"))
        source = {"channel": "telegram", "provider": "telegram", "endpoint_identity": "far_bot"}
        event = running.envelope("hello", external_thread_id="77") | {"source": source, "sender": {"identity": "77"}}
        for _ in range(2):
            response = await running.http.post(
                running.url(path="/api/ingest"), json=event, headers={"Authorization": f"Bearer {token}"}
            )
            error = response.json()["error"]
            assert (response.status_code, error["retryable"]) == (403, False)
            assert [wrong["field"] for wrong in error["fields"]] == ["sender.identity"]
        [row] = await refused(running, channel="telegram")
        assert (row["sender"], row["endpoint"], row["messages"]) == ("77", "far_bot", 1)
        assert await refused(running, channel="email") == []
        operators = await running.http.post(running.url(path="/api/ingest"), json=event)
        assert operators.status_code == 202, "an operator speaks for anybody"
        await all_finished(running)
