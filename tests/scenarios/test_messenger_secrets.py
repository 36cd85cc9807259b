"""Secrets do not leave in messages: the system's own go by their value, those of providers by their shape."""

from __future__ import annotations

import pytest

from butlers.channels.email import SIMULATED_PASSWORD
from butlers.channels.telegram.simulator import DEFAULT_TOKEN
from tests.scenarios.messenger_door import call, deliver, mails, rows, wish
from tests.scenarios.messenger_time import running, system
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

GITHUB = "ghp_" + "a1B2" * 9
KEY_BLOCK = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk=\n-----END OPENSSH PRIVATE KEY-----"


async def test_the_systems_own_secrets_are_taken_out_and_it_is_on_record(running: RunningSystem) -> None:
    """What a session that was talked into it would say: tokens of callers, of the bot, passwords."""
    secrets = [running.token("operator"), running.token("switchboard"), DEFAULT_TOKEN, SIMULATED_PASSWORD]
    answer = await deliver(running, wish(f"Here you are: {', '.join(secrets)}. Anything else?"))
    assert answer["delivery"]["status"] == "delivered"
    marks = ", ".join(["[redacted]"] * len(secrets))
    assert await running.answers() == [f"[health] Here you are: {marks}. Anything else?"]
    [row] = await rows(running)
    assert not any(secret in str(dict(row)) for secret in secrets), "the record holds none of them either"
    [decision] = [one for one in row["decisions"] if one["rule"] == "secrets"]
    assert (decision["verdict"], decision["detail"][:1]) == ("redacted", str(len(secrets)))
    why = await call(running, "messenger", "messenger_delivery_why", {"delivery_id": str(row["id"])})
    assert any("[redacted]" in line for line in why["lines"])
    metrics = (await running.http.get(running.url("messenger", "/metrics"))).text
    assert "butlers_messenger_secrets_redacted" in metrics


async def test_what_looks_like_a_credential_is_taken_out_of_text_and_subject(running: RunningSystem) -> None:
    text = f"Use {GITHUB} and\n{KEY_BLOCK}\nas agreed."
    notify = wish(text, channel="email", recipient="friend@elsewhere.example", subject=f"The key {GITHUB}")
    assert (await deliver(running, notify))["delivery"]["status"] == "delivered"
    [mail] = await mails(running)
    assert GITHUB not in str(mail)
    assert "OPENSSH" not in str(mail)
    assert "[redacted]" in mail["subject"]
    [row] = await rows(running)
    assert row["message"] == "Use [redacted] and\n[redacted]\nas agreed."


@pytest.mark.parametrize(
    "text",
    [
        "My password is swordfish and the token of my affection",
        "Call 123456: ask for Ada. The key is under the mat.",
        "sk-short, eyJhbGciOi, AKIA, -----BEGIN CERTIFICATE-----",
        "Order 123456789012:short",
    ],
)
async def test_ordinary_words_stay_as_they_are(running: RunningSystem, text: str) -> None:
    await deliver(running, wish(text))
    [row] = await rows(running)
    assert row["message"] == f"[health] {text}"
    assert "secrets" not in {decision["rule"] for decision in row["decisions"]}
