"""What may be answered by a machine (RFC 3834), and what Switchboard tells about the answered mail."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.channels.email.headers import MAX_REFERENCES, MAX_VALUE, may_answer, message_ids, source_event
from butlers.channels.telegram import payload as telegram
from butlers.messenger.preparation import reply_subject

OWN = "butler@home.example"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    "event",
    [
        None,
        {},
        {"message_id": 7},
        {"from": "Ann <ann@far.example>", "return_path": "<ann@far.example>"},
        {"auto_submitted": "no"},
        {"auto_submitted": "No (a person)"},
        {"precedence": "first-class"},
        {"list_id": ""},
        {"x_auto_response_suppress": "None", "x_autoreply": "no"},
        {"from": "Nora Reply <nora.reply@far.example>"},
        {"from": "(" * 990, "return_path": "<" * 990},
        {"auto_submitted": 5, "precedence": [], "list_id": None, "return_path": 9, "from": {}},
    ],
)
def test_people_are_answered(event: Any) -> None:
    assert may_answer(event, OWN) is None


@pytest.mark.parametrize(
    ("event", "because"),
    [
        ({"auto_submitted": "auto-replied"}, "Auto-Submitted"),
        ({"auto_submitted": "Auto-Generated; owner=x"}, "Auto-Submitted"),
        ({"precedence": " BULK "}, "Precedence"),
        ({"precedence": "list"}, "Precedence"),
        ({"precedence": "junk"}, "Precedence"),
        ({"list_id": "<club.far.example>"}, "List-Id"),
        ({"return_path": "<>"}, "null return path"),
        ({"return_path": " "}, "null return path"),
        ({"from": "Butler <BUTLER@home.example>"}, "our own"),
        ({"return_path": "<butler@home.example>"}, "our own"),
        ({"from": "MAILER-DAEMON@far.example"}, "mail server"),
        ({"from": "Postmaster <postmaster@far.example>"}, "mail server"),
        ({"return_path": "<bounces+ann=home.example@far.example>"}, "mail server"),
        ({"from": "No Reply <no-reply@far.example>"}, "no-reply"),
        ({"from": "noreply+17@far.example"}, "no-reply"),
        ({"from": "do_not.reply@far.example"}, "no-reply"),
        ({"from": "Butler <butler+tag@home.example>"}, "our own"),
        ({"precedence": "auto_reply"}, "Precedence"),
        ({"x_auto_response_suppress": "OOF, AutoReply"}, "X-Auto-Response-Suppress"),
        ({"x_autoreply": "yes"}, "X-Autoreply"),
        ({"x_autorespond": "x"}, "X-Autorespond"),
        ({"x_loop": "support@far.example"}, "X-Loop"),
        ({"list_unsubscribe": "<mailto:leave@far.example>"}, "List-Unsubscribe"),
        ({"feedback_id": "12:campaign:far"}, "Feedback-ID"),
    ],
)
def test_machines_lists_and_ourselves_are_not(event: dict[str, Any], because: str) -> None:
    reason = may_answer(event, OWN)
    assert reason is not None
    assert because in reason


@given(JSON)
def test_whatever_stands_in_the_event_is_judged_without_an_error(event: Any) -> None:
    may_answer(event if isinstance(event, dict) else {"from": event, "return_path": event}, OWN)


@pytest.mark.parametrize(
    ("own", "parent", "shown"),
    [
        (None, "Lunch?", "Re: [health] Lunch?"),
        (None, "Re: [health] Lunch?", "Re: [health] Lunch?"),
        ("Your blood pressure", "Lunch?", "Re: [health] Your blood pressure"),
        (" ", "Re: Re: Lunch?", "Re: [health] Lunch?"),
        (None, None, None),
        (None, "  ", None),
    ],
)
def test_the_subject_of_an_answer(own: str | None, parent: str | None, shown: str | None) -> None:
    assert reply_subject(own=own, parent=parent, origin="health") == shown


def test_message_ids_are_picked_out_of_whatever_stands_there() -> None:
    assert message_ids("<a@x> junk <b@x>\r\n\t<c@x>") == ["<a@x>", "<b@x>", "<c@x>"]
    assert message_ids(f"<{'a' * 600}@x> <ö@x> <a b@x>") == []
    assert message_ids(None) == []


# --- the record of the answered message ------------------------------------------------------------------------------


def test_a_telegram_message_is_known_by_its_number() -> None:
    assert telegram.source_event({"update_id": 1, "message": {"message_id": 7, "text": "x"}}) == {"message_id": 7}
    unusable: list[Any] = [None, [], {"message": None}, {"message": {"message_id": "7"}}]
    for raw in (*unusable, {"message": {"message_id": True}}):
        assert telegram.source_event(raw) is None


def test_a_mail_is_known_by_its_headers_in_any_case() -> None:
    headers = {
        "MESSAGE-ID": "<a@x>",
        "references": "<r@x>",
        "Subject": "Lunch?",
        "Auto-Submitted": "no",
        "precedence": "bulk",
        "List-ID": "<l@x>",
        "return-PATH": "<>",
        "From": ["Ann <ann@x>", "second"],
        "In-Reply-To": 5,
        "Received": "by somebody",
    }
    assert source_event({"headers": headers, "uid": 4}) == {
        "message_id": "<a@x>",
        "references": "<r@x>",
        "subject": "Lunch?",
        "auto_submitted": "no",
        "precedence": "bulk",
        "list_id": "<l@x>",
        "return_path": "<>",
        "from": "Ann <ann@x>",
    }


def test_what_is_too_long_is_cut_and_a_thread_keeps_its_root_and_its_end() -> None:
    ids = [f"<{number:04d}@far.example>" for number in range(2_000)]
    event = source_event({"headers": {"Subject": "x" * 5_000, "References": " ".join(ids)}})
    assert event is not None
    assert len(event["subject"]) == MAX_VALUE
    assert len(event["references"]) <= MAX_REFERENCES
    kept = message_ids(event["references"])
    assert (kept[0], kept[-1]) == (ids[0], ids[-1])
    assert set(kept) <= set(ids)


@given(JSON)
def test_any_stored_payload_is_read_without_an_error(raw: Any) -> None:
    for payload in (raw, {"headers": raw}, {"message": raw}):
        event = source_event(payload)
        assert event is None or event
