"""The mailbox against the mail simulator and a real database: tools, routing, bounces, checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest

from butlers.butler.identity import Caller
from butlers.butler.toolbox import ToolBox
from butlers.channels.adapter import Outgoing, Sent
from butlers.channels.email.adapter import EmailChannel
from butlers.channels.email.mailbox.imap import ImapAccount, ImapClient
from butlers.channels.email.mailbox.mail_server import MailServer
from butlers.channels.email.mailbox.reports import MailParser
from butlers.channels.email.mailbox.routing import BounceWatch
from butlers.channels.email.mailbox.tools import Mailbox
from butlers.channels.email.simulator import MailSimulator, serve_mail
from butlers.channels.email.simulator.faults import FaultKind, MailFault, Server
from butlers.clock import SystemClock
from butlers.contracts.ingest import IngestEnvelope
from butlers.daemon.compose.base import base_migrations
from butlers.errors import ClassifiedError, TargetUnavailable, ValidationError
from butlers.ids import Uuid7Factory
from butlers.messenger.receipts import ReceiptIntake
from butlers.operations.operation import Role
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database
from tests.integration.channels.receipt_rows import MIGRATIONS, SCHEMA, Rows
from tests.integration.simulators.mail_state import ACCOUNTS, BUTLER, STRANGER
from tests.integration.simulators.mail_support import controlling

OPERATOR = Caller(name="operator", role=Role.OPERATOR)
NOTHING = {"routed": 0, "duplicates": 0, "bounces": 0, "skipped": 0, "refused": 0, "failed": 0}


@dataclass(slots=True)
class Door:
    """Switchboard's ingest door, as far as Messenger sees it: strict, durable, and sometimes away."""

    accepted: dict[str, dict[str, Any]] = field(default_factory=dict)
    refusal: ClassifiedError | None = None

    async def call(self, butler: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        assert (butler, tool) == ("switchboard", "ingest")
        if self.refusal is not None:
            raise self.refusal
        envelope = IngestEnvelope.parse(arguments)
        known = envelope.event.external_event_id in self.accepted
        self.accepted.setdefault(envelope.event.external_event_id, dict(arguments))
        return {"request_id": "x", "status": "accepted", "duplicate": known}

    async def close(self) -> None:
        return


@dataclass(slots=True, kw_only=True)
class MailSystem:
    mail: MailSimulator
    control: httpx2.AsyncClient
    database: Database
    rows: Rows
    door: Door
    tools: ToolBox
    watch: BounceWatch

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return await self.tools.call(tool, OPERATOR, arguments)

    async def route(self, **arguments: Any) -> dict[str, int]:
        """What became of the new mail; only what happened at all."""
        counts = await self.call("email_check_and_route_inbox", **arguments)
        assert counts.keys() == NOTHING.keys()
        return {name: number for name, number in counts.items() if number}

    async def arrives(self, number: int, text: str = "hello", **more: Any) -> int:
        body = {"from": STRANGER, "to": BUTLER, "subject": f"Letter {number}", "text": text} | more
        response = await self.control.post("/messages", json=body | {"message_id": f"<{number}@far.example>"})
        uid: int = response.json()["uids"][BUTLER]
        return uid

    async def sent(self, key: str, *, status: str = "delivered", receipt: bool = True) -> UUID:
        """A mail that really left, and the delivery it belongs to."""
        target = f"{key}@far.example"
        delivery = await self.rows.delivery(status, channel="email", target=target)
        await self.database.execute(
            "update messenger.delivery_requests set idempotency_key = $2 where id = $1", delivery, key
        )
        outgoing = Outgoing(
            delivery_id=Uuid7Factory(SystemClock())(),
            idempotency_key=key,
            intent="send",
            target=target,
            message="hello",
            subject="[health] News",
        )
        result = await _channel(self.mail).attempt(outgoing, timeout_s=5, wire=_Deaf())
        assert isinstance(result, Sent)
        if receipt:
            await self.rows.sent(delivery, result.provider_delivery_id)
        return delivery

    async def reported(self, number: int, **report: Any) -> None:
        response = await self.control.post(f"/accepted/{number}/report", json=report)
        assert response.status_code == 201, response.text

    async def receipts(self, delivery: UUID) -> list[str]:
        query = "select receipt_type from messenger.delivery_receipts where delivery_id = $1 order by receipt_type"
        return [row["receipt_type"] for row in await self.database.fetch(query, delivery)]

    async def suppressed(self) -> list[tuple[str, str]]:
        rows = await self.database.fetch("select target, decided_by from messenger.recipient_rules order by target")
        return [(row["target"], row["decided_by"]) for row in rows]


class _Deaf:
    def leaving(self, part: int = 1) -> None:
        return

    async def part_sent(self, part: int, provider_delivery_id: str) -> None:
        return


def _channel(mail: MailSimulator) -> EmailChannel:
    server = MailServer(protocol="smtp", host=mail.host, port=mail.smtp_port, tls="none")
    return EmailChannel(server=server, address=BUTLER, password=ACCOUNTS[BUTLER])


@pytest.fixture
async def system(postgres_server: EmbeddedPostgres) -> AsyncIterator[MailSystem]:
    clock, door = SystemClock(), Door()
    async with (
        serve_mail("127.0.0.1", 0, 0, None, clock=clock, accounts=ACCOUNTS) as mail,
        controlling(mail) as control,
        cloned_database(postgres_server, [base_migrations(SCHEMA), *MIGRATIONS], max_size=3) as database,
    ):
        server = MailServer(protocol="imap", host=mail.host, port=mail.imap_port, tls="none")
        account = ImapAccount(server=server, address=BUTLER, password=ACCOUNTS[BUTLER], timeout_s=5.0)
        receipts = ReceiptIntake(database=database, schema=SCHEMA, clock=clock, new_id=Uuid7Factory(clock))
        parser = MailParser()
        mailbox = Mailbox.build(
            imap=ImapClient(account),
            parser=parser,
            database=database,
            schema=SCHEMA,
            clock=clock,
            receipts=receipts,
            transport=door,
        )
        yield MailSystem(
            mail=mail,
            control=control,
            database=database,
            rows=Rows(database),
            door=door,
            tools=ToolBox(mailbox.tools),
            watch=mailbox.watch,
        )
        await parser.close()


# --- searching and reading -------------------------------------------------------------------------------------------


async def found(system: MailSystem, **arguments: Any) -> list[str]:
    page = await system.call("email_search_inbox", **arguments)
    return [message["subject"] for message in page["messages"]]


async def test_the_inbox_is_searched(system: MailSystem) -> None:
    await system.arrives(1, "about apples")
    await system.arrives(2, "about pears", **{"from": "zoe@far.example"})
    await system.arrives(3, "about Äpfel", subject="Grüße, Ann", headers={"From": "Jörg <joerg@far.example>"})
    assert await found(system) == ["Grüße, Ann", "Letter 2", "Letter 1"]
    assert await found(system, query="apples") == ["Letter 1"]
    assert await found(system, sender="zoe@far") == ["Letter 2"]
    assert await found(system, subject="letter") == ["Letter 2", "Letter 1"]
    assert await found(system, query="apples", subject="Letter 2") == []
    assert await found(system, query='quote " and \\ backslash') == []
    now = system.mail.store.clock.now()
    assert len(await found(system, since=(now - timedelta(minutes=1)).isoformat())) == 3
    assert await found(system, since=(now + timedelta(minutes=1)).isoformat()) == []
    page = await system.call("email_search_inbox", limit=1, subject="Letter 2")
    (message,) = page["messages"]
    assert message["from"] == "zoe@far.example"
    assert message["message_id"] == "<2@far.example>"
    assert (message["uid"], message["seen"], page["next_cursor"]) == (2, False, None)
    assert message["size"] > 100


async def test_words_beyond_ascii_are_found(system: MailSystem) -> None:
    await system.arrives(1, "plain", subject="Grüße aus Köln")
    await system.arrives(2, "plain", subject="Grüße aus Bonn")
    assert await found(system, subject="Köln") == ["Grüße aus Köln"]
    assert await found(system, subject="Grüße", query="Bonn") == ["Grüße aus Bonn"]


async def test_pages_follow_each_other_while_mail_comes_in(system: MailSystem) -> None:
    for number in range(1, 6):
        await system.arrives(number)
    seen: list[int] = []
    cursor: str | None = None
    while True:
        page = await system.call("email_search_inbox", limit=2, **({"cursor": cursor} if cursor else {}))
        seen += [message["uid"] for message in page["messages"]]
        await system.arrives(100 + len(seen))
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == [5, 4, 3, 2, 1]


async def test_a_cursor_of_another_numbering_is_refused(system: MailSystem) -> None:
    for number in range(3):
        await system.arrives(number)
    cursor = (await system.call("email_search_inbox", limit=1))["next_cursor"]
    system.mail.store.renew_uidvalidity(BUTLER)
    for wrong in (cursor, "nonsense", "1-1"):
        with pytest.raises(ValidationError) as refused:
            await system.call("email_search_inbox", cursor=wrong)
        assert refused.value.fields[0].field == "cursor"


async def test_only_unread_mail_is_shown_when_asked(system: MailSystem) -> None:
    first, _second = await system.arrives(1), await system.arrives(2)
    system.mail.store.set_flags(BUTLER, "INBOX", first, ["\\Seen"])
    assert await found(system, unseen=True) == ["Letter 2"]
    page = await system.call("email_search_inbox")
    assert [message["seen"] for message in page["messages"]] == [False, True]


async def test_a_mail_is_read_and_stays_unread(system: MailSystem) -> None:
    await system.arrives(1, "the text\nof two lines", in_reply_to="<0@far.example>", headers={"X-Test": "yes"})
    by_uid = await system.call("email_read_message", uid=1)
    assert by_uid == await system.call("email_read_message", message_id="<1@far.example>")
    assert (by_uid["text"], by_uid["truncated"], by_uid["attachments"]) == ("the text\nof two lines", False, [])
    assert (by_uid["headers"]["x-test"], by_uid["headers"]["in-reply-to"]) == (["yes"], ["<0@far.example>"])
    assert await found(system, unseen=True) == ["Letter 1"]


async def test_attachments_are_named_and_measured(system: MailSystem) -> None:
    raw = (
        b"From: a@far.example\r\nMessage-ID: <7@far.example>\r\nMIME-Version: 1.0\r\n"
        b"Content-Type: multipart/mixed; boundary=m\r\n\r\n--m\r\nContent-Type: text/plain\r\n\r\nsee there\r\n"
        b"--m\r\nContent-Type: application/pdf\r\nContent-Disposition: attachment; filename=bill.pdf\r\n"
        b"Content-Transfer-Encoding: base64\r\n\r\naGVsbG8=\r\n--m--\r\n"
    )
    await system.control.post(f"/messages/raw?to={BUTLER}&from={STRANGER}", content=raw)
    mail = await system.call("email_read_message", uid=1)
    assert mail["text"] == "see there"
    assert mail["attachments"] == [{"filename": "bill.pdf", "media_type": "application/pdf", "size_bytes": 5}]


@pytest.mark.parametrize(
    ("tool", "arguments", "wrong"),
    [
        ("email_read_message", {}, ""),
        ("email_read_message", {"uid": 1, "message_id": "<a@x>"}, ""),
        ("email_read_message", {"uid": 77}, "uid"),
        ("email_read_message", {"message_id": "<nobody@x>"}, "message_id"),
        ("email_read_message", {"message_id": '<a@x> OR "'}, "message_id"),
        ("email_read_message", {"uid": 0}, "uid"),
        ("email_search_inbox", {"query": "a\r\nb"}, "query"),
        ("email_search_inbox", {"sender": " "}, "sender"),
        ("email_search_inbox", {"limit": 101}, "limit"),
        ("email_search_inbox", {"since": "yesterday"}, "since"),
        ("email_check_and_route_inbox", {"limit": 0}, "limit"),
    ],
)
async def test_bad_arguments_are_refused(system: MailSystem, tool: str, arguments: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError) as refused:
        await system.call(tool, **arguments)
    assert [field.field for field in refused.value.fields] == [wrong]


async def test_only_messenger_and_the_operator_may_read(system: MailSystem) -> None:
    for caller in (None, Caller(name="health", role=Role.BUTLER), Caller(name="c", role=Role.CONNECTOR)):
        with pytest.raises(ValidationError):
            await system.tools.call("email_search_inbox", caller, {})
    await system.tools.call("email_search_inbox", Caller(name="messenger", role=Role.BUTLER), {})


@pytest.mark.parametrize("kind", [FaultKind.DROP_BEFORE, FaultKind.NO, FaultKind.BAD, FaultKind.DROP_AFTER])
async def test_a_mailbox_that_fails_is_a_typed_error(system: MailSystem, kind: FaultKind) -> None:
    await system.arrives(1)
    for command in ("CONNECT", "LOGIN", "EXAMINE", "SEARCH", "FETCH"):
        system.mail.faults.add(MailFault(server=Server.IMAP, moment=command, kind=kind))
        with pytest.raises(TargetUnavailable):
            await system.call("email_search_inbox")
        assert system.mail.faults.waiting() == (), command
    assert await found(system) == ["Letter 1"]


# --- handing mail on -------------------------------------------------------------------------------------------------


async def test_new_mail_is_handed_in_once(system: MailSystem) -> None:
    await system.arrives(1, "hello there", headers={"References": "<root@far.example> <0@far.example>"})
    await system.arrives(2)
    assert await system.route() == {"routed": 2}
    assert await system.route() == {}
    first = IngestEnvelope.parse(system.door.accepted["<1@far.example>"])
    assert (first.source.channel, first.source.provider, first.source.endpoint_identity) == ("email", "imap", BUTLER)
    assert (first.event.external_thread_id, first.sender.identity) == ("<root@far.example>", STRANGER)
    assert first.payload.normalized_text == "Letter 1\n\nhello there"
    assert first.payload.raw["headers"]["message-id"] == "<1@far.example>"
    assert system.door.accepted["<2@far.example>"]["event"]["external_thread_id"] == "<2@far.example>"
    await system.arrives(3)
    assert await system.route() == {"routed": 1}


async def test_a_limit_leaves_the_rest_for_next_time(system: MailSystem) -> None:
    for number in range(25):
        await system.arrives(number)
    assert await system.route(limit=12) == {"routed": 12}
    assert await system.route(limit=500) == {"routed": 13}
    assert list(system.door.accepted) == [f"<{number}@far.example>" for number in range(25)]


async def test_the_checkpoint_waits_for_switchboard(system: MailSystem) -> None:
    for number in (1, 2):
        await system.arrives(number)
    system.door.refusal = TargetUnavailable("away")
    assert await system.route() == {"failed": 1}
    assert await system.route() == {"failed": 1}
    system.door.refusal = None
    assert await system.route() == {"routed": 2}


async def test_a_mail_that_is_refused_for_good_does_not_block_the_others(system: MailSystem) -> None:
    await system.arrives(1)
    system.door.refusal = ValidationError("never")
    assert await system.route() == {"failed": 1}
    system.door.refusal = None
    await system.arrives(2)
    assert await system.route() == {"routed": 1}


async def test_new_numbers_mean_looking_again_and_nothing_is_handed_in_twice(system: MailSystem) -> None:
    for number in (1, 2):
        await system.arrives(number)
    await system.route()
    system.mail.store.renew_uidvalidity(BUTLER)
    await system.arrives(3)
    assert await system.route() == {"routed": 1, "duplicates": 2}
    assert await system.route() == {}


async def test_our_own_mail_is_not_handed_in(system: MailSystem) -> None:
    await system.arrives(1, headers={"From": f"The Butler <{BUTLER.upper()}>"})
    assert await system.route() == {"skipped": 1}


async def test_mail_without_a_name_or_sense_is_handed_in_all_the_same(system: MailSystem) -> None:
    for raw in (b"\r\n", b"garbage without any header", b"Subject: \xff\xfe\x00\r\n\r\n\x00"):
        await system.control.post(f"/messages/raw?to={BUTLER}&from={STRANGER}", content=raw)
    assert await system.route() == {"routed": 3}


async def test_two_looks_at_once_hand_in_once(system: MailSystem) -> None:
    for number in range(5):
        await system.arrives(number)
    both = await asyncio.gather(system.route(), system.route())
    assert sorted(both, key=len) == [{}, {"routed": 5}]


# --- bounces ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
async def test_a_bounce_becomes_a_receipt_and_silences_the_address(system: MailSystem, whole: bool) -> None:
    delivery = await system.sent("ann")
    await system.reported(1, status="5.1.1", whole=whole)
    assert await system.route() == {"bounces": 1}
    assert await system.receipts(delivery) == ["bounced", "sent"]
    assert await system.suppressed() == [("ann@far.example", "provider")]
    assert system.door.accepted == {}


async def test_a_bounce_that_comes_again_changes_nothing(system: MailSystem) -> None:
    delivery = await system.sent("ann")
    await system.reported(1)
    await system.reported(1)
    assert await system.route() == {"bounces": 1, "duplicates": 1}
    assert await system.receipts(delivery) == ["bounced", "sent"]


async def test_a_full_mailbox_bounces_and_silences_nobody(system: MailSystem) -> None:
    delivery = await system.sent("ann")
    await system.reported(1, status="5.2.2")
    assert await system.route() == {"bounces": 1}
    assert (await system.receipts(delivery), await system.suppressed()) == (["bounced", "sent"], [])


async def test_a_delivery_report_is_a_receipt_too_and_a_delay_is_none(system: MailSystem) -> None:
    delivery = await system.sent("ann")
    await system.reported(1, action="delayed", status="4.4.1")
    assert await system.route() == {"skipped": 1}
    await system.reported(1, action="delivered", status="2.0.0")
    assert await system.route() == {"bounces": 1}
    assert await system.receipts(delivery) == ["delivered", "sent"]


async def test_a_bounce_settles_a_mail_whose_answer_was_lost(system: MailSystem) -> None:
    delivery = await system.sent("ann", status="uncertain", receipt=False)
    await system.rows.attempt(delivery, "uncertain")
    await system.reported(1, status="5.1.1")
    assert await system.route() == {"bounces": 1}
    assert await system.receipts(delivery) == ["bounced"]
    status = await system.database.fetchval("select status from messenger.delivery_requests where id = $1", delivery)
    assert status == "failed"


async def test_a_report_about_a_mail_of_somebody_else_is_neither_receipt_nor_mail(system: MailSystem) -> None:
    delivery = await system.sent("ann")
    await system.database.execute("delete from messenger.delivery_receipts")
    await system.reported(1)
    assert await system.route() == {"skipped": 1}
    assert (await system.receipts(delivery), await system.suppressed(), system.door.accepted) == ([], [], {})


async def test_the_watch_reads_bounces_and_leaves_the_rest_to_the_router(system: MailSystem) -> None:
    delivery = await system.sent("ann")
    await system.arrives(1)
    await system.reported(1)
    await system.arrives(2)
    assert await system.watch.run_once() == {"recorded": 1, "repeated": 0, "undecided": 0, "unknown": 0}
    assert await system.receipts(delivery) == ["bounced", "sent"]
    assert system.door.accepted == {}
    assert sum((await system.watch.run_once()).values()) == 0
    assert await system.route() == {"routed": 2, "duplicates": 1}
    system.mail.store.renew_uidvalidity(BUTLER)
    assert (await system.watch.run_once())["repeated"] == 1


async def test_the_watch_finds_what_it_missed_while_the_mailbox_was_away(system: MailSystem) -> None:
    delivery = await system.sent("ann")
    await system.reported(1)
    for command, times in (("LOGIN", 3), ("FETCH", 2)):  # each look asks again for one mail, and what there is
        system.mail.faults.add(MailFault(server=Server.IMAP, moment=command, kind=FaultKind.DROP_BEFORE, times=times))
        with pytest.raises(TargetUnavailable):
            await system.watch.run_once()
    assert (await system.watch.run_once())["recorded"] == 1
    assert await system.receipts(delivery) == ["bounced", "sent"]


async def test_the_simulator_reports_only_on_what_it_accepted_from_a_local_sender(system: MailSystem) -> None:
    assert (await system.control.post("/accepted/1/report", json={})).status_code == 404
    await system.sent("ann")
    for body in ({"status": "nonsense"}, {"action": "eaten"}, {"recipient": "nobody"}, {"unknown": 1}):
        assert (await system.control.post("/accepted/1/report", json=body)).status_code == 422, body
    assert len(system.mail.store.messages(BUTLER)) == 0
