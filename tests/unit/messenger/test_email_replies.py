"""What a mail server's reply means."""

from __future__ import annotations

import pytest

from butlers.channels.adapter import Certainty, Throttle
from butlers.channels.email.smtp import THROTTLE_S, Reply, refused


def reply(phase: str, code: int, text: str = "") -> Reply:
    return Reply(phase=phase, code=code, text=text)


@pytest.mark.parametrize(
    ("given", "error_class", "retryable", "gone"),
    [
        (reply("rcpt", 450, "4.7.1 Greylisted"), "target_unavailable", True, False),
        (reply("dot", 451, "4.3.0 try later"), "target_unavailable", True, False),
        (reply("rcpt", 452, "4.2.2 full"), "target_unavailable", True, False),
        (reply("rcpt", 550), "validation_error", False, True),
        (reply("rcpt", 551, "5.1.6 moved"), "validation_error", False, True),
        (reply("rcpt", 553, "5.1.3 odd"), "validation_error", False, True),
        (reply("rcpt", 550, "5.2.1 disabled"), "validation_error", False, True),
        (reply("rcpt", 550, "5.0.0 no"), "validation_error", False, True),
        (reply("rcpt", 550, "5.7.1 policy"), "validation_error", False, False),
        (reply("rcpt", 552, "5.2.2 full"), "validation_error", False, False),
        (reply("dot", 554, "5.6.0 content"), "validation_error", False, False),
        (reply("dot", 550, "5.1.1 unknown after all"), "validation_error", False, True),
        (reply("dot", 550), "validation_error", False, False),
        (reply("dot", 552, "5.3.4 too big"), "validation_error", False, False),
        (reply("mail", 553, "5.1.8 you"), "validation_error", False, False),
        (reply("auth", 535, "5.7.8 wrong"), "target_unavailable", False, False),
        (reply("auth", 454, "4.7.0 later"), "target_unavailable", True, False),
        (reply("mail", 530, "5.7.0 log in first"), "target_unavailable", False, False),
        (reply("connect", 554, "5.7.1 go away"), "target_unavailable", False, False),
        (reply("data", 250), "target_unavailable", False, False),
    ],
)
def test_a_refusal_has_a_class(given: Reply, error_class: str, retryable: bool, gone: bool) -> None:
    result = refused(given)
    assert (result.error.error_class, result.error.retryable) == (error_class, retryable)
    assert (result.recipient_gone, result.certainty, result.answered) == (gone, Certainty.NOT_SENT, True)


@pytest.mark.parametrize(
    ("given", "throttled"),
    [
        (reply("connect", 421, "4.7.0 busy"), True),
        (reply("rcpt", 450, "4.7.1 Too many connections"), True),
        (reply("dot", 452, "4.5.3 rate limit"), True),
        (reply("rcpt", 450, "4.7.1 Greylisted"), False),
        (reply("rcpt", 451), False),
        (reply("rcpt", 550, "5.5.3 too many recipients"), False),
    ],
)
def test_a_busy_server_is_left_alone_for_a_while(given: Reply, throttled: bool) -> None:
    result = refused(given)
    assert result.throttle == (Throttle(scope="channel", seconds=THROTTLE_S) if throttled else None)
    assert result.error.retry_after == (THROTTLE_S if throttled else None)


def test_the_evidence_never_holds_the_servers_words() -> None:
    result = refused(reply("dot", 554, "5.6.0 your text 'the secret' is bad"))
    assert result.response == {"phase": "dot", "code": 554, "enhanced": "5.6.0"}
    assert "secret" not in result.error.message
    assert refused(reply("dot", 554, "4.6.0 mixed up")).response["enhanced"] is None
