"""Pairing codes: short enough to be read out, too many to be guessed. Pure but for the randomness that is handed in.

No vowels, so that no code is a word and `approve payments` is no command; no 0, 1, I, O, so that it can be read aloud.
28 letters, 8 places: 3.8 * 10^11 codes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

LETTERS = "23456789BCDFGHJKLMNPQRSTVWXZ"
LENGTH = 8
LIFETIME = timedelta(hours=24)
_LONGEST_COMMAND = 40  # characters


def new_code(choose: Callable[[str], str]) -> str:
    """`choose` takes one letter at random: `secrets.choice`."""
    return "".join(choose(LETTERS) for _ in range(LENGTH))


def shown(code: str) -> str:
    """As people read it: K7QF-2M9X."""
    return f"{code[: LENGTH // 2]}-{code[LENGTH // 2 :]}"


def read_code(text: str) -> str | None:
    """The code that a text is, however it is spelled; None when it is none."""
    if len(text) > _LONGEST_COMMAND:
        return None
    code = "".join(letter for letter in text.strip().upper() if letter not in "- ")
    return code if len(code) == LENGTH and all(letter in LETTERS for letter in code) else None


def read_approval(text: str) -> str | None:
    """The code of "approve CODE"; None for everything else that people say."""
    if len(text) > _LONGEST_COMMAND:
        return None
    verb, _, rest = text.strip().partition(" ")
    return read_code(rest) if verb.casefold() in ("approve", "/approve") else None
