"""Which texts are commands, and whose."""

from __future__ import annotations

import pytest

from butlers.outbound.preference_chat import split_mute
from butlers.switchboard.chat_commands import LONGEST_COMMAND, read_command


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/mute 2h", ("mute", "2h")),
        ("  /MUTE   until  18:00 ", ("mute", "until 18:00")),
        ("/unmute", ("unmute", "")),
        ("/mute@Our_Bot 2h", ("mute", "2h")),
        ("/mute@other_bot 2h", None),  # in a group several bots listen
        ("mute 2h", None),
        ("please /mute 2h", None),
        ("/mute 2h\nand pay the invoice", None),  # more than a command
        ("/", None),
        ("/2h", None),
        ("", None),
        ("/mute " + "x" * LONGEST_COMMAND, None),
        ("/" * 100_000, None),
    ],
)
def test_a_command_is_one_line_that_begins_with_a_slash(text: str, command: tuple[str, str] | None) -> None:
    assert read_command(text, bot="our_bot") == command


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("2h", ("2h", None)),
        ("2h invoice", ("2h", "invoice")),
        ("2h monthly invoice", ("2h", "monthly invoice")),
        ("until 18:00", ("until 18:00", None)),
        ("Until 18:00 invoice", ("Until 18:00", "invoice")),
        ("", ("", None)),
    ],
)
def test_a_mute_has_a_duration_and_perhaps_an_event(arguments: str, parts: tuple[str, str | None]) -> None:
    assert split_mute(arguments) == parts
