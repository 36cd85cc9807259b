"""The sentences of a text that state something, and those that say how to act.

A question, a condition or a quotation says nothing about what is so.
"""

from __future__ import annotations

import re
from itertools import islice

LONGEST_SENTENCE = 300  # characters; longer ones are not plain statements
MOST_SENTENCES = 100  # of one episode
# Words that may stand before what a sentence says.
LEAD = r"^(?:(?:and|but|so|well|please|remember(?: that)?|note(?: that)?|by the way|fyi|ok|okay|yes|no)[,:]? )*"

_ABBREVIATION = re.compile(r"\b(Dr|Mr|Ms|Mrs|St|Prof)\. ")
# "my name is Ann and I live in Graz" says two things.
_JOINT = re.compile(r"(?:,? and |, but | but )(?=(?:I|I'm|my) )", re.IGNORECASE)
_UNREAL = re.compile(r"(?:[>\"“]|if |unless |suppose |imagine |what if |when |whether )", re.IGNORECASE)
_CORRECTION = re.compile(
    rf"{LEAD}(?:i (?:told|said to) you(?: already)?[,:]? (?:to )?)?(?:from now on,? )?(?:you should )?"
    r"((?:never|always|don't|do not|stop|next time,?|instead of) .{3,200})$",
    re.IGNORECASE,
)


def plain_sentences(text: str) -> list[str]:
    """The sentences that state something, without their end marks."""
    # A title's dot is not an end; without the dot nothing has to tell them apart.
    found = re.split(r"(?<=[.!?…])\s+|[\n;]+", _ABBREVIATION.sub(r"\1 ", text.replace("’", "'")))
    sentences = (" ".join(sentence.split()) for sentence in found)
    parts = (part for sentence in sentences if _states_something(sentence) for part in _JOINT.split(sentence))
    return [part.rstrip(".!…") for part in islice(parts, MOST_SENTENCES)]


def corrections(text: str) -> list[str]:
    """What a text says about how to act, each as an instruction of its own."""
    return [wish for sentence in plain_sentences(text) if (wish := _correction(sentence)) is not None]


def _states_something(sentence: str) -> bool:
    if not 0 < len(sentence) <= LONGEST_SENTENCE or sentence.endswith("?"):
        return False
    return _UNREAL.match(sentence) is None


def _correction(sentence: str) -> str | None:
    match = _CORRECTION.search(sentence)
    if match is None:
        return None
    wish = re.sub(r"(?i)^do not ", "don't ", match[1].strip())
    return wish[0].upper() + wish[1:]
