"""Facts in plain sentences, without a model.

    "My dentist is Dr. Weiss"            owner          | dentist           | Dr. Weiss
    "My wife's birthday is 3 May"        owner's wife   | birthday          | 3 May
    "Anna lives in Graz"                 Anna           | lives in          | Graz
    "I can't stand olives"               owner          | opinion of olives | hates
    "I'm allergic to nuts"               owner          | allergy to nuts   | allergic

Only English, and only plain statements (`sentences`). What a thing is *called* is the predicate and what may *change*
is the content, so that "I like olives" and, later, "I hate olives" are one fact whose newer version wins.

Every pattern copies words of the sentence and adds none of its own, so a hostile text can at most plant its own words,
under the name of whoever said them. What opens doors or accounts is never made a fact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

Permanence = Literal["permanent", "stable", "standard", "volatile", "ephemeral"]
MAX_CONTENT = 2_000  # characters of one memory
MAX_NAME = 200  # characters of a subject or a predicate
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
# What somebody has one of, and keeps for years; any other "my X is Y" is more likely a passing state.
_LASTING = frozenset(
    {"name", "surname", "nickname", "address", "email", "phone", "number", "doctor", "dentist", "landlord", "insurer"}
    | {"wife", "husband", "partner", "boss", "employer", "job", "profession", "nationality", "language", "plate"}
    | {"bank", "school", "team"}
)
_SECRET = frozenset(
    {"password", "passcode", "passphrase", "pin", "code", "cvv", "secret", "token", "key", "iban", "card"}
)
# "My head is killing me" says nothing about a head.
_PASSING = frozenset(
    {"not", "so", "too", "very", "just", "still", "also", "already", "really", "going", "getting", "being", "making"}
    | {"doing", "killing", "coming", "broken", "here", "there", "late", "ready", "done", "gone", "fine", "good", "bad"}
    | {"ok", "okay", "sick", "ill", "tired", "full", "empty", "better", "worse"}
)
_POINTING = frozenset(
    {"it", "this", "that", "he", "she", "they", "we", "you", "there", "here", "what", "who", "which", "everything"}
    | {"everyone", "nobody"}
)
_REMARK = re.compile(
    r" (?:because|since|but|although|when|if|so|very much|a lot|too|now|(?:last|this|next) (?:year|month|week))\b"
    r"| [-–(]",
    re.IGNORECASE,
)
_OPINIONS = {
    "like": "likes",
    "love": "loves",
    "enjoy": "likes",
    "adore": "loves",
    "hate": "hates",
    "dislike": "dislikes",
    "detest": "hates",
}
_VERB = r"(?:really |absolutely |also |just )?(like|love|enjoy|adore|hate|dislike|detest)"
_NAME = r"(?-i:[A-Z][\w-]+(?: [A-Z][\w-]+){0,2})"
_MINE = r"my [\w-]+(?: [\w-]+)?"
_PERSON = rf"(I|{_MINE}|{_NAME})"
_REST = r"(.{1,120})$"


def plain_sentences(text: str) -> list[str]:
    """The sentences that state something, without their end marks."""
    # A title's dot is not an end; without the dot nothing has to tell them apart.
    found = re.split(r"(?<=[.!?…])\s+|[\n;]+", _ABBREVIATION.sub(r"\1 ", text.replace("’", "'")))
    sentences = (" ".join(sentence.split()) for sentence in found)
    plain = (
        sentence
        for sentence in sentences
        if 0 < len(sentence) <= LONGEST_SENTENCE and not sentence.endswith("?") and _UNREAL.match(sentence) is None
    )
    parts = (part for sentence in plain for part in _JOINT.split(sentence))
    return [part.rstrip(".!…") for part in islice(parts, MOST_SENTENCES)]


def corrections(text: str) -> list[str]:
    """What a text says about how to act, each as an instruction of its own."""
    matches = (_CORRECTION.search(sentence) for sentence in plain_sentences(text))
    instructions = (re.sub(r"(?i)^do not ", "don't ", match[1].strip()) for match in matches if match is not None)
    return [instruction[0].upper() + instruction[1:] for instruction in instructions]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One thing a sentence says."""

    subject: str
    predicate: str
    content: str
    permanence: Permanence
    confidence: float


Reader = Callable[[re.Match[str], str], Iterator[Statement]]  # of a match and the speaker


def statements(text: str, speaker: str) -> list[Statement]:
    """What a text says about the world, in its order."""
    result: list[Statement] = []
    for sentence in plain_sentences(text):
        for form, read in PATTERNS:
            match = form.search(sentence)
            candidates = read(match, speaker) if match is not None else ()
            if found := [s for s in candidates if len(s.subject) <= MAX_NAME >= len(s.predicate)]:
                result += found
                break  # the first form that fits: a sentence is read once
    return result


def _things(text: str) -> list[str]:
    """ "nuts, milk and eggs" as three."""
    parts = (_thing(part) for part in re.split(r", ?(?:and |or )?| (?:and|or) ", text))
    return [part for part in parts if part]


def _thing(text: str) -> str:
    """The name of a thing: what follows is a remark about it."""
    named = _REMARK.split(text)[0]
    return re.sub(r"(?i)^(?:the|a|an|any|my) ", "", named.strip(" .,!\"'"))


# --- what the forms say ----------------------------------------------------------------------------------------------


def _birthday(match: re.Match[str], speaker: str) -> Iterator[Statement]:
    whose, day = match[1], _thing(match[2])
    subject = _of(whose.removesuffix("'s").removesuffix("'"), speaker)
    if day and subject:
        yield Statement(subject=subject, predicate="birthday", content=day, permanence="permanent", confidence=0.9)


def _of(whose: str, speaker: str) -> str | None:
    """Whom the words before "birthday" or "lives" mean."""
    if whose.casefold() in ("i", "my"):
        return speaker
    if (mine := re.fullmatch(r"(?i)my (.+)", whose)) is not None:
        return f"{speaker}'s {mine[1]}"
    return None if whose.casefold() in _POINTING else whose


def _place(predicate: str, confidence: float) -> Reader:
    def read(match: re.Match[str], speaker: str) -> Iterator[Statement]:
        subject, place = _of(match[1], speaker), _thing(match[2])
        if subject and place:
            yield Statement(
                subject=subject, predicate=predicate, content=place, permanence="stable", confidence=confidence
            )

    return read


def _allergy(match: re.Match[str], speaker: str) -> Iterator[Statement]:
    subject = _of(match[1], speaker)
    content = "not allergic" if match[2] else "allergic"
    for thing in _things(match[3]) if subject else ():
        yield Statement(
            subject=subject or speaker,
            predicate=f"allergy to {thing}",
            content=content,
            permanence="stable",
            confidence=0.95 if match[1].casefold() == "i" else 0.7,
        )


def _opinions(things: str, subject: str, opinion: str, confidence: float) -> Iterator[Statement]:
    for thing in _things(things):
        if thing.casefold() not in _POINTING and not thing.casefold().startswith(("to ", "how ", "that ", "you")):
            yield Statement(
                subject=subject,
                predicate=f"opinion of {thing}",
                content=opinion,
                permanence="standard",
                confidence=confidence,
            )


def _own_opinion(match: re.Match[str], speaker: str) -> Iterator[Statement]:
    return _opinions(match[2], speaker, _OPINIONS[match[1].casefold()], 0.8)


def _own_aversion(match: re.Match[str], speaker: str) -> Iterator[Statement]:
    return _opinions(match[2], speaker, "hates" if "stand" in match[1] or "bear" in match[1] else "dislikes", 0.8)


def _preference(match: re.Match[str], speaker: str) -> Iterator[Statement]:
    preferred, other = _thing(match[1]), _thing(match[2])
    if preferred and other:
        yield Statement(
            subject=speaker,
            predicate=f"opinion of {preferred}",
            content=f"prefers it to {other}",
            permanence="standard",
            confidence=0.75,
        )


def _others_opinion(match: re.Match[str], _speaker: str) -> Iterator[Statement]:
    if match[1].casefold() in _POINTING:
        return iter(())
    return _opinions(match[3], match[1], _OPINIONS[match[2].casefold().removesuffix("s")], 0.6)


def _attribute(match: re.Match[str], speaker: str) -> Iterator[Statement]:
    name, value = match[1].strip(), match[2].strip(" .,!\"'")
    first = value.split()[0].casefold() if value else ""
    if not value or first in _PASSING or name.casefold() in _POINTING or _SECRET & set(name.casefold().split()):
        return
    lasting = name.split()[-1].casefold() in _LASTING or name.casefold().startswith("favo")
    yield Statement(
        subject=speaker,
        predicate=name,
        content=value,
        permanence="stable" if lasting else "volatile",
        confidence=0.85 if lasting else 0.5,
    )


_FORMS: tuple[tuple[str, Reader], ...] = (
    (rf"{LEAD}(my|{_MINE}(?:'s|')|{_NAME}(?:'s|')) birthday is (?:on )?{_REST}", _birthday),
    (
        rf"{LEAD}{_PERSON} (?:now )?(?:lives? in|(?:have |has )?moved to|am from|is from) {_REST}",
        _place("lives in", 0.8),
    ),
    (rf"{LEAD}{_PERSON} (?:now )?works? (?:at|for) {_REST}", _place("works at", 0.75)),
    (rf"{LEAD}{_PERSON}(?:'m| am| is|'s) (not )?allergic to {_REST}", _allergy),
    (rf"{LEAD}I(?:'d)? (?:really )?prefer (.+?) (?:to|over) {_REST}", _preference),
    (
        rf"{LEAD}I (?:really )?(don't like|do not like|don't enjoy|can't stand|cannot stand|can't bear) {_REST}",
        _own_aversion,
    ),
    (rf"{LEAD}I {_VERB} {_REST}", _own_opinion),
    (rf"{LEAD}({_NAME}) (?:really )?(likes|loves|enjoys|adores|hates|dislikes|detests) {_REST}", _others_opinion),
    (rf"{LEAD}my ([\w'-]+(?: [\w'-]+){{0,3}}?) is {_REST}", _attribute),
)
PATTERNS = tuple((re.compile(form, re.IGNORECASE), read) for form, read in _FORMS)
