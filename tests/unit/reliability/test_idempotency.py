from __future__ import annotations

import unicodedata
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from butlers.reliability.idempotency import (
    caller_key,
    content_key,
    delivery_key,
    event_key,
    replay_key,
    root_key,
    window_number,
)

from .moments import START, at

DELIVERY: dict[str, Any] = {
    "request_id": "0199-a",
    "origin_butler": "health",
    "intent": "send",
    "channel": "email",
    "target_identity": "anna@example.org",
    "message": "Take your pills",
    "subject": "Reminder",
}
CALL: dict[str, Any] = {
    "channel": "api",
    "endpoint_identity": "api:main",
    "sender_identity": "anna",
    "payload": "buy milk",
    "window": 7,
}
WISH: dict[str, Any] = {name: DELIVERY[name] for name in DELIVERY.keys() - {"message", "subject"}} | {
    "idempotency_key": "k1"
}
IDENTIFIERS = ["request_id", "origin_butler", "intent", "channel", "target_identity"]


def test_the_same_delivery_has_the_same_key():
    assert delivery_key(**DELIVERY) == delivery_key(**DELIVERY)
    assert delivery_key(**DELIVERY).startswith("delivery-")


@pytest.mark.parametrize("field", DELIVERY)
def test_every_field_of_a_delivery_counts(field):
    assert delivery_key(**DELIVERY | {field: "other"}) != delivery_key(**DELIVERY)


@pytest.mark.parametrize("field", CALL)
def test_every_field_of_a_call_counts(field):
    other = 8 if field == "window" else "other"
    assert content_key(**CALL | {field: other}) != content_key(**CALL)


@pytest.mark.parametrize("field", IDENTIFIERS)
def test_identifiers_are_trimmed_and_lower_cased(field):
    assert delivery_key(**DELIVERY | {field: f"  {DELIVERY[field].upper()}\n"}) == delivery_key(**DELIVERY)


@pytest.mark.parametrize("field", ["message", "subject"])
def test_content_keeps_its_case(field):
    assert delivery_key(**DELIVERY | {field: DELIVERY[field].upper()}) != delivery_key(**DELIVERY)


@pytest.mark.parametrize(
    ("one", "other"),
    [("a\r\nb", "a\nb"), ("a\rb", "a\nb"), ("\n a ", "a"), ("caf\u00e9", "cafe\u0301")],
)
def test_content_that_reads_the_same_has_the_same_key(one, other):
    assert delivery_key(**DELIVERY | {"message": one}) == delivery_key(**DELIVERY | {"message": other})
    assert content_key(**CALL | {"payload": one}) == content_key(**CALL | {"payload": other})


def test_inner_blanks_and_blank_lines_are_content():
    keys = {delivery_key(**DELIVERY | {"message": text}) for text in ("a b", "a  b", "a\nb", "a\n\nb")}
    assert len(keys) == 4


def test_a_blank_subject_is_no_subject():
    without = delivery_key(**DELIVERY | {"subject": None})
    assert delivery_key(**DELIVERY | {"subject": " \n"}) == without
    assert delivery_key(**DELIVERY) != without


def test_a_lone_surrogate_has_a_key_of_its_own():
    keys = {delivery_key(**DELIVERY | {"message": text}) for text in ("\ud800", "\ud801", "?")}
    assert len(keys) == 3


@pytest.mark.parametrize("field", IDENTIFIERS)
def test_a_key_cannot_be_made_from_a_blank_identifier(field):
    with pytest.raises(ValueError):
        delivery_key(**DELIVERY | {field: "  "})


def test_a_callers_key_lives_in_the_callers_name_space_and_keeps_its_case():
    known = caller_key(**WISH)
    assert caller_key(**WISH | {"origin_butler": "Health ", "idempotency_key": "k1 "}) == known
    assert caller_key(**WISH | {"idempotency_key": "K1"}) != known
    with pytest.raises(ValueError):
        caller_key(**WISH | {"idempotency_key": " "})


@pytest.mark.parametrize("field", sorted(WISH))
def test_a_callers_key_stands_in_for_the_content_and_for_nothing_else(field):
    assert caller_key(**WISH | {field: "other"}) != caller_key(**WISH)


def test_a_callers_key_needs_no_request():
    loose = caller_key(**WISH | {"request_id": None})
    assert loose == caller_key(**WISH | {"request_id": " "}) != caller_key(**WISH)


@pytest.mark.parametrize("field", sorted(WISH.keys() - {"request_id"}))
def test_a_callers_key_cannot_be_made_from_a_blank_identifier(field):
    with pytest.raises(ValueError):
        caller_key(**WISH | {field: "  "})


def test_an_event_is_known_by_its_source_and_the_name_the_source_gave_it():
    known = event_key(channel="telegram", endpoint_identity="bot:a", external_event_id="1001")
    assert known == event_key(channel="Telegram", endpoint_identity="bot:A ", external_event_id="1001")
    assert known != event_key(channel="telegram", endpoint_identity="bot:b", external_event_id="1001")
    assert known != event_key(channel="telegram", endpoint_identity="bot:a", external_event_id="1002")


def test_stored_keys_stay_valid():
    """Keys live in the database: whoever changes how they are made must see this fail."""
    fields = "6:caller6:0199-a6:health4:send5:email16:anna@example.org2:k1"
    assert caller_key(**WISH) == "caller-" + sha256(fields.encode()).hexdigest()
    content = sha256("5:café".encode()).hexdigest()
    fields = f"8:delivery6:0199-a6:health4:send5:email16:anna@example.org64:{content}"
    key = delivery_key(**DELIVERY | {"message": "café", "subject": None})
    assert key == "delivery-" + sha256(fields.encode()).hexdigest()


def test_keys_of_different_kinds_never_meet():
    event = event_key(channel="a", endpoint_identity="b", external_event_id="c")
    keys = [caller_key(**WISH), event, delivery_key(**DELIVERY), content_key(**CALL)]
    assert len({key.partition("-")[2] for key in keys}) == len(keys)


@pytest.mark.parametrize(("seconds", "same"), [(0, True), (299, True), (300, False), (-1, False)])
def test_a_window_is_bounded(seconds, same):
    assert START.timestamp() % 300 == 0
    assert (window_number(at(seconds), 300) == window_number(START, 300)) is same


def test_a_replay_carries_its_number_and_its_root():
    key = delivery_key(**DELIVERY)
    assert replay_key(key, 1) == f"{key}::replay-1"
    assert replay_key(replay_key(key, 1), 2) == f"{key}::replay-2"
    assert root_key(replay_key(key, 12)) == root_key(key) == key
    with pytest.raises(ValueError):
        replay_key(key, 0)


def test_only_a_suffix_is_taken_for_a_replay():
    assert root_key("x::replay-1y") == "x::replay-1y"
    assert root_key("x::replay-") == "x::replay-"
    assert root_key("x::replay-1::replay-2") == "x"


# Letters that make field borders visible if fields were simply joined.
shifty = st.text("ab:-|\x00\x1f1\n", max_size=6)


@settings(max_examples=100, deadline=None)
@given(text=st.text("ab:|\x1f,1", min_size=7, max_size=20), data=st.data())
def test_text_shifted_between_fields_never_collides(text, data):
    def cut() -> list[str]:
        borders = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), min_size=6, max_size=6)))
        return [text[a:b].strip() for a, b in zip([0, *borders], [*borders, len(text)], strict=True)]

    one, other = cut(), cut()
    # str.strip also takes \x1f, and a blank identifier has no key.
    assume(all(one) and all(other))
    same = delivery_key(**dict(zip(DELIVERY, one, strict=True))) == delivery_key(
        **dict(zip(DELIVERY, other, strict=True))
    )
    assert same == (one == other)


@settings(max_examples=100, deadline=None)
@given(one=st.tuples(shifty, shifty), other=st.tuples(shifty, shifty))
def test_a_callers_keys_collide_only_when_they_are_the_same(one, other):
    normal = [(target.strip(), key.strip()) for target, key in (one, other)]
    assume(all(target and key for target, key in normal))
    keys = [caller_key(**WISH | {"target_identity": target, "idempotency_key": key}) for target, key in (one, other)]
    assert (keys[0] == keys[1]) == (normal[0] == normal[1])


@settings(max_examples=100, deadline=None)
@given(message=st.text(max_size=40), form=st.sampled_from(["NFC", "NFD"]), newline=st.sampled_from(["\n", "\r\n"]))
def test_the_form_a_client_happens_to_send_makes_no_difference(message, form, newline):
    plain = message.replace("\r", "\n")
    sent = unicodedata.normalize(form, plain).replace("\n", newline) + newline
    assert delivery_key(**DELIVERY | {"message": sent}) == delivery_key(**DELIVERY | {"message": plain})


@settings(max_examples=100, deadline=None)
@given(numbers=st.lists(st.integers(1, 10**9), min_size=1, max_size=5))
def test_a_chain_of_replays_keeps_one_root_and_the_last_number(numbers):
    key = root = delivery_key(**DELIVERY)
    for number in numbers:
        key = replay_key(key, number)
    assert key == f"{root}::replay-{numbers[-1]}"
    assert root_key(key) == root


@settings(max_examples=100, deadline=None)
@given(seconds=st.integers(0, 10**7), gap=st.integers(0, 299))
def test_a_repeat_within_the_window_is_in_this_one_or_the_one_before(seconds, gap):
    later = at(seconds)
    numbers = window_number(later - timedelta(seconds=gap), 300), window_number(later, 300)
    assert numbers[1] - numbers[0] in (0, 1)
