"""The mail simulators' control API and book of faults."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from butlers.channels.email.simulator import MailSimulator, serve_mail
from butlers.channels.email.simulator.faults import FaultKind, PendingFaults, Server
from butlers.clock import ManualClock
from butlers.errors import ValidationError
from tests.integration.simulators.mail_state import (
    ACCOUNTS,
    BUTLER,
    OWNER,
    STRANGER,
    control,
    fault,
    mail,
    send,
)
from tests.integration.simulators.mail_support import DEADLINE, blocking

__all__ = ["control", "mail"]  # fixtures


def test_a_fault_strikes_as_often_as_asked_oldest_first() -> None:
    book = PendingFaults()
    twice = book.add(fault("rcpt", FaultKind.REPLY, times=2, recipient="*@A.example"))
    always = book.add(fault("*", FaultKind.DELAY, times=None, seconds=1))
    taken = [book.take_at(Server.SMTP, "rcpt", ("Bob@a.example",)) for _ in range(4)]
    assert [t.id for t in taken if t] == [twice.id, twice.id, always.id, always.id]
    assert book.take_at(Server.IMAP, "SELECT") is None
    assert [f.id for f in book.waiting()] == [always.id]
    book.clear()
    assert book.waiting() == ()


def test_a_fault_that_could_never_strike_is_refused_with_all_reasons() -> None:
    with pytest.raises(ValidationError) as refusal:
        PendingFaults().add(fault("helo", FaultKind.NO, text="a\r\nb"))
    assert [f.field for f in refusal.value.fields] == ["phase", "kind", "text"]


async def test_the_control_api_drops_mail_from_outside(mail: MailSimulator, control: httpx2.AsyncClient) -> None:
    body = {
        "from": STRANGER,
        "to": [OWNER, BUTLER],
        "subject": "Grüße",
        "text": "hello\nthere",
        "in_reply_to": "<parent@x>",
        "headers": {"Auto-Submitted": "auto-replied"},
    }
    created = await control.post("/messages", json=body)
    assert created.status_code == 201
    assert created.json()["uids"] == {OWNER: 1, BUTLER: 1}

    account = (await control.get(f"/mailboxes/{OWNER}")).json()
    inbox = {box["name"]: box for box in account["mailboxes"]}["INBOX"]
    (message,) = inbox["messages"]
    assert (message["from"], message["subject"], message["text"]) == (STRANGER, "Grüße", "hello\nthere")
    assert message["message_id"] == created.json()["message_id"]
    assert message["in_reply_to"] == message["references"] == "<parent@x>"
    assert b"Auto-Submitted: auto-replied\r\n" in mail.store.messages(OWNER)[0].raw
    assert (await control.get("/mailboxes")).json() == {"addresses": [BUTLER, OWNER]}

    raw = b"Content-Type: multipart/report; boundary=x\r\n\r\n--x\r\n\r\n\xff\r\n--x--\r\n"
    posted = await control.post("/messages/raw", params={"to": OWNER}, content=raw)
    assert posted.json() == {"message_id": None, "uids": {OWNER: 2}}
    assert mail.store.messages(OWNER)[1].raw.endswith(raw)

    await control.post("/reset")
    assert mail.store.messages(OWNER) == ()
    assert (await control.get("/accepted")).json() == {"accepted": []}


_OUTSIDE = {"from": STRANGER, "to": OWNER, "text": "t"}
_SMTP_FAULT = {"server": "smtp", "phase": "dot", "kind": "reply"}


@pytest.mark.parametrize(
    ("path", "body", "refusal"),
    [
        ("messages", b"{", (400, [""])),
        ("messages", b"\xff", (400, [""])),
        pytest.param("messages", b'"' + b"x" * (17 << 20) + b'"', (413, [""]), id="17 MiB"),
        ("messages", b'{"from":"a@b","to":"owner@home.example","text":"\\ud800"}', (400, [""])),
        ("messages", [], (422, [""])),
        ("messages", {"from": "x", "to": OWNER, "subject": 1}, (422, ["from", "subject", "text"])),
        ("messages", _OUTSIDE | {"subject": "a\r\nBcc: b@c"}, (422, ["subject"])),
        ("messages", _OUTSIDE | {"extra": 1}, (422, ["extra"])),
        ("messages", _OUTSIDE | {"to": "nobody@home.example"}, (422, ["to"])),
        ("messages", _OUTSIDE | {"message_id": "<a>\r\nX: y"}, (422, ["message_id"])),
        ("messages", _OUTSIDE | {"headers": {"X-A": "b\r\nX-C: d"}}, (422, ["headers.X-A"])),
        ("messages", _OUTSIDE | {"headers": {"X-A": "b\0"}}, (422, ["headers.X-A"])),
        ("messages", _OUTSIDE | {"headers": {"a b": "c"}}, (422, ["headers.a b"])),
        pytest.param("messages", b"[" * 200_000, (400, [""]), id="deep"),
        ("messages/raw", b"x", (422, ["to"])),
        (f"messages/raw?to={OWNER}&from=a%0d%0aX:y", b"x", (422, ["from"])),
        ("faults", _SMTP_FAULT | {"server": "pop3"}, (422, ["server"])),
        ("faults", {"server": "smtp", "command": "FETCH", "kind": "reply"}, (422, ["phase"])),
        ("faults", {"server": "imap", "command": "FLY", "kind": "reply"}, (422, ["command", "kind"])),
        ("faults", _SMTP_FAULT | {"kind": "delay"}, (422, ["seconds"])),
        ("faults", _SMTP_FAULT | {"times": 0, "code": 250}, (422, ["times", "code"])),
        ("uidvalidity", {"address": "nobody@home.example"}, (404, ["mailbox"])),
    ],
)
async def test_bad_control_input_is_refused_with_the_fields_and_changes_nothing(
    mail: MailSimulator, control: httpx2.AsyncClient, path: str, body: Any, refusal: tuple[int, list[str]]
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await control.post(f"/{path}", content=content)
    error = response.json()["error"]
    assert (response.status_code, [f["field"] for f in error["fields"]]) == refusal
    assert error["class"] == "validation_error"
    assert mail.store.messages(OWNER) == ()
    assert mail.faults.waiting() == ()


async def test_faults_can_be_listed_and_removed(control: httpx2.AsyncClient) -> None:
    ids = [
        (await control.post("/faults", json={"server": "imap", "command": c, "kind": "no"})).json()["id"]
        for c in ("fetch", "UID SEARCH")
    ]
    listed = (await control.get("/faults")).json()["faults"]
    assert [f["moment"] for f in listed] == ["FETCH", "UID SEARCH"]
    assert (await control.delete(f"/faults/{ids[0]}")).status_code == 204
    assert (await control.delete(f"/faults/{ids[0]}")).status_code == 404
    assert (await control.delete("/faults")).status_code == 204
    assert (await control.get("/faults")).json() == {"faults": []}
    assert (await control.get("/accepted", params={"after": "x"})).status_code == 422
    assert (await control.get("/accepted/7/raw")).status_code == 404
    assert (await control.get("/mailboxes/nobody@x")).status_code == 404


async def test_the_control_api_answers_on_its_own_port_until_the_end() -> None:
    async with serve_mail("127.0.0.1", 0, 0, 0, clock=ManualClock(), accounts=ACCOUNTS) as mail:
        async with httpx2.AsyncClient(base_url=mail.control_url, timeout=DEADLINE) as client:
            assert (await client.post("/messages", content=b"{")).status_code == 400
            assert (await client.get("/nowhere")).status_code == 404
            await blocking(lambda: send(mail))
            assert len((await client.get("/accepted")).json()["accepted"]) == 1
        url = mail.control_url
    with pytest.raises(httpx2.ConnectError):
        await httpx2.AsyncClient().get(url)
