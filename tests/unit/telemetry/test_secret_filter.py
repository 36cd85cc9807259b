"""The filter of what leaves: what it finds, what it leaves alone, and what hostile text costs."""

from __future__ import annotations

import time

import pytest

from butlers.telemetry.redaction import SecretFilter, password_in, secrets_in

SHAPES = [
    "sk-" + "a1" * 12,
    "ghp_" + "a" * 36,
    "github_pat_" + "a1_" * 10,
    "glpat-" + "a" * 20,
    "xoxb-1234567890-abcdef",
    "AKIA" + "ABCD" * 4,
    "AIza" + "x" * 35,
    "123456789:" + "A" * 35,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nwithout an end",
]


@pytest.mark.parametrize("secret", SHAPES)
def test_a_shape_is_replaced_wherever_it_stands(secret: str) -> None:
    text, found = SecretFilter()(f"before ({secret}")
    assert (text, found) == ("before ([redacted]", 1)
    assert SecretFilter(shapes=False)(secret) == (secret, 0)


def test_known_secrets_are_asked_for_each_time_and_the_longest_goes_first() -> None:
    known = ["swordfish-1"]
    scan = SecretFilter(lambda: known, shapes=False)
    assert scan("swordfish-1 swordfish-12") == ("[redacted] [redacted]2", 2)
    known.append("swordfish-12")
    assert scan("swordfish-1 swordfish-12") == ("[redacted] [redacted]", 2)
    assert "swordfish" not in repr(scan)


def test_short_values_would_tear_holes_and_are_left_alone() -> None:
    assert SecretFilter(lambda: ["", "the", "1234567"])("the 1234567") == ("the 1234567", 0)


def test_secrets_of_an_environment() -> None:
    environment = {
        "BUTLER_TELEGRAM_TOKEN": "123456:abcdef",
        "BUTLER_EMAIL_PASSWORD": "short",
        "DATABASE_URL": "postgresql://u:s%40fe-word@h/d",
        "HOME": "/home/ada-lovelace",
    }
    assert secrets_in(environment) == ["123456:abcdef", "s@fe-word"]
    assert password_in("http://[broken@") is None


HOSTILE = [
    "sk-",
    "eyJ-",
    "eyJa.",
    "1",
    "123456:",
    "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----",
    "ghp_",
    "a-",
    "A",
    "- ",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_costs_no_more_than_its_length(piece: str) -> None:
    """Ten times the text may take about ten times as long, of the processor; a hundred times would be quadratic."""

    def seconds(length: int) -> float:
        text = (piece * (length // len(piece) + 1))[:length]
        best = float("inf")
        for _ in range(3):
            started = time.process_time()
            SecretFilter(lambda: ["swordfish-1"])(text)
            best = min(best, time.process_time() - started)
        return best

    assert seconds(200_000) < 60 * max(seconds(20_000), 0.0005)
