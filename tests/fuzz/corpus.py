"""Sound documents to start from."""

from __future__ import annotations

from typing import Any

REQUEST = "01890a5d-ac96-774b-bcce-b302099a8057"
CONTACT = "7f0f5a0e-6c0b-4f0e-9a57-0d7f3c1e2b11"

LINEAGE = {
    "request_id": REQUEST,
    "received_at": "2026-01-02T03:04:05+00:00",
    "source_channel": "telegram",
    "source_endpoint_identity": "bot",
    "source_sender_identity": "1000",
    "source_thread_identity": "1000",
    "trace_context": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
}


def notify(**delivery: Any) -> dict[str, Any]:
    return {
        "schema_version": "notify.v1",
        "origin_butler": "health",
        "delivery": {"intent": "send", "channel": "telegram", "message": "hello **you**"} | delivery,
        "priority": "normal",
    }


NOTIFIES: tuple[dict[str, Any], ...] = (
    notify(recipient="4711"),
    notify(),
    notify(channel="email", recipient="ann@example.org", subject="News"),
    notify(intent="reply") | {"request_context": LINEAGE},
    notify(intent="react", emoji="👀") | {"request_context": LINEAGE},
    notify() | {"contact_id": CONTACT, "idempotency_key": "key-1", "not_after": "2099-01-01T00:00:00Z"},
)


def route(carried: Any) -> dict[str, Any]:
    return {
        "schema_version": "route.v1",
        "request_context": LINEAGE,
        "input": {
            "prompt": "Execute outbound delivery request through Messenger.",
            "context": {
                "notify_request": carried,
                "authenticated_origin": "health",
                "source_event": {"message_id": 17},
            },
            "conversation_history": [{"role": "user", "text": "hi"}],
        },
        "subrequest": {"subrequest_id": CONTACT, "segment_id": "segment-1", "fanout_mode": "parallel"},
        "target": {"butler": "messenger", "tool": "route.execute"},
        "trace_context": {},
    }


ROUTES = tuple(route(carried) for carried in NOTIFIES)

INGESTS: tuple[dict[str, Any], ...] = tuple(
    {
        "schema_version": "ingest.v1",
        "source": {"channel": channel, "provider": provider, "endpoint_identity": "door"},
        "event": {
            "external_event_id": "77",
            "external_thread_id": "1000",
            "observed_at": "2026-01-02T03:04:05.678+02:00",
        },
        "sender": {"identity": "1000", "display_name": "Ann"},
        "payload": {
            "raw": {"update_id": 77, "message": {"message_id": 5}},
            "normalized_text": "I paid the bill",
            "attachments": [{"media_type": "image/png", "size_bytes": 10, "filename": "a.png"}],
        },
        "control": {"policy_tier": "interactive", "idempotency_key": "k", "trace_context": {}},
    }
    for channel, provider in (("telegram", "telegram"), ("email", "imap"), ("api", "internal"))
)

_PERSON = {"id": 1000, "is_bot": False, "first_name": "Ann", "last_name": "Lee", "username": "ann"}
_CHAT = {"id": 1000, "type": "private", "first_name": "Ann"}
_MESSAGE = {"message_id": 5, "from": _PERSON, "chat": _CHAT, "date": 1767323045, "text": "hello"}
UPDATES: tuple[dict[str, Any], ...] = (
    {"update_id": 10, "message": _MESSAGE},
    {"update_id": 11, "edited_message": _MESSAGE | {"edit_date": 1767323046}},
    {"update_id": 12, "message": {k: v for k, v in _MESSAGE.items() if k != "text"} | {"caption": "see", "photo": []}},
    {"update_id": 13, "message": _MESSAGE | {"chat": {"id": -100, "type": "supergroup", "title": "Us"}}},
    {"update_id": 14, "callback_query": {"id": "1", "from": _PERSON, "data": "x"}},
)

ANSWERS: tuple[dict[str, Any], ...] = (
    {"ok": True, "result": _MESSAGE},
    {"ok": True, "result": True},
    {"ok": False, "error_code": 429, "description": "Too Many Requests", "parameters": {"retry_after": 1}},
    {"ok": False, "error_code": 400, "description": "Bad Request: can't parse entities"},
    {"ok": False, "error_code": 400, "description": "migrated", "parameters": {"migrate_to_chat_id": -1001}},
    {"ok": False, "error_code": 403, "description": "Forbidden: bot was blocked by the user"},
    {"ok": False, "error_code": 500, "description": "Internal Server Error"},
)

_HEAD = """\
From: =?utf-8?Q?Ann_L=C3=A9e?= <ann@example.org>
To: butler@butlers.example
Subject: =?utf-8?B?SGVsbG8=?=
Date: Fri, 02 Jan 2026 03:04:05 +0000
Message-ID: <one@example.org>
References: <zero@example.org>
MIME-Version: 1.0
"""
_PLAIN = """\
Content-Type: text/plain; charset=utf-8

Hello there
"""
_RICH = """\
Content-Type: text/html; charset=latin-1
Content-Transfer-Encoding: quoted-printable

<p>Hello =E9 <b>you</b><br>&amp;</p>
"""
_PARTS = """\
Content-Type: multipart/mixed; boundary="b1"

--b1
Content-Type: multipart/alternative; boundary=b2

--b2
Content-Type: text/plain

plain
--b2
Content-Type: text/html

<p>rich</p>
--b2--
--b1
Content-Type: image/png; name*=utf-8''%C3%A9.png
Content-Transfer-Encoding: base64
Content-Disposition: attachment; filename="a.png"

iVBORw0KGgo=
--b1--
"""
_REPORT = """\
From: MAILER-DAEMON@example.org
To: butler@butlers.example
Subject: Undelivered
Auto-Submitted: auto-replied
Content-Type: multipart/report; report-type=delivery-status; boundary="r"

--r
Content-Type: text/plain

Sorry
--r
Content-Type: message/delivery-status

Reporting-MTA: dns; example.org

Final-Recipient: rfc822; ann@example.org
Action: failed
Status: 5.1.1

--r
Content-Type: message/rfc822

Message-ID: <abc@butlers.example>
Subject: x

body
--r--
"""
MAILS = tuple(text.replace("\n", "\r\n").encode() for text in (_HEAD + _PLAIN, _HEAD + _RICH, _HEAD + _PARTS, _REPORT))
