"""Signatures are those of Standard Webhooks."""

from __future__ import annotations

from datetime import UTC, datetime

from butlers.webhooks.signature import new_secret, signed_headers

# The example of the specification's reference libraries.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE = "msg_p5jXN8AQM9LWM0D4loKWxJek"
AT = datetime.fromtimestamp(1614265330, UTC)
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_example_of_the_reference_libraries():
    assert signed_headers([SECRET], MESSAGE, BODY, now=AT) == {
        "webhook-id": MESSAGE,
        "webhook-timestamp": "1614265330",
        "webhook-signature": SIGNATURE,
    }


def test_while_a_secret_is_changed_both_sign():
    other = new_secret(lambda count: b"\x07" * count)
    first, second = signed_headers([other, SECRET], MESSAGE, BODY, now=AT)["webhook-signature"].split(" ")
    assert second == SIGNATURE
    assert first == signed_headers([other], MESSAGE, BODY, now=AT)["webhook-signature"]
    assert first != second


def test_a_secret_is_written_as_the_specification_says():
    assert new_secret(lambda count: bytes(range(count))) == "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
