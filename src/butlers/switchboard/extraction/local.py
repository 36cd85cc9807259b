"""The relationship extractor without a model: rules over sentences.

It takes only what is said plainly, so it misses much and is seldom wrong: a question, a wish, something that will be,
would be or is not so is left alone, and a person has to be named or called by a word like "my sister". English, and in
some other languages birthdays and loans, whose days and amounts look alike everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from butlers.errors import ClassificationError
from butlers.switchboard.extraction.signals import MAX_SIGNALS, Extraction, SignalType, checked
from butlers.switchboard.routing.llm_answer import clean_line, pieces_of

_UPPER = "A-ZÀ-ÖØ-ÞĀĂĄĆČĎĐĒĘĚĞĪŁŃŇŌŐŘŚŞŠŤŪŮŰŹŻŽ"
_NAME = rf"(?-i:[{_UPPER}][^\W\d_]+(?:[-'’][{_UPPER}][^\W\d_]+)?(?:\s[{_UPPER}][^\W\d_]+)?)"
_KIN = (
    "sister|brother|mother|father|mom|mum|dad|wife|husband|partner|son|daughter|cousin|aunt|uncle|niece|nephew|"
    "grandmother|grandfather|grandma|grandpa|friend|girlfriend|boyfriend|colleague|coworker|boss|neighbou?r|roommate"
)
PERSON = rf"(?:(?:my|our)\s(?:(?:best|old|little|older|younger|big)\s)?(?:{_KIN})(?:\s{_NAME})?|{_NAME})"
_KIN_WORD = re.compile(rf"^(?:my|our)\s(?:\w+\s)?(?:{_KIN})$", re.IGNORECASE)

# Capitalised words that are no people.
_NOBODY_WORDS = """
i we he she they it you the a an this that these those there here my our your his her their its what when where who why
how and but so or if then also just yesterday today tomorrow tonight last next monday tuesday wednesday thursday friday
saturday sunday january february march april may june july august september october november december christmas easter
hanukkah ramadan thanksgiving please thanks thank hello hi hey dear yes no ok okay not amazon google apple netflix
paypal spotify uber airbnb happy merry nobody everybody everyone someone somebody people mr mrs ms dr ich wir er sie
es der die das ein eine heute gestern je nous il elle le la les un une yo el ella los hoy ayer ho io lui lei oggi ieri
"""
_NOBODY = frozenset(_NOBODY_WORDS.split())

_MONTHS = (
    "january jan januar janvier enero gennaio",
    "february feb februar février fevrier febrero febbraio",
    "march mar märz maerz mars marzo",
    "april apr avril abril aprile",
    "may mai mayo maggio",
    "june jun juni juin junio giugno",
    "july jul juli juillet julio luglio",
    "august aug août aout agosto",
    "september sep sept septembre septiembre settembre",
    "october oct oktober okt octobre octubre ottobre",
    "november nov novembre noviembre",
    "december dec dezember dez décembre decembre diciembre dicembre",
)
_MONTH_OF = {name: number for number, names in enumerate(_MONTHS, start=1) for name in names.split()}
_MONTH = "|".join(sorted(_MONTH_OF, key=len, reverse=True))
_DAY = r"(?P<{0}>\d{{1,2}})(?:st|nd|rd|th|er|\.|º)?"
_YEAR = r"(?:,?\s(?:de\s)?(?P<{0}>(?:19|20)\d\d))?"
DAY = re.compile(
    rf"\b(?P<iso>\d{{4}}-\d{{2}}-\d{{2}})\b"
    rf"|\b{_DAY.format('d1')}\s(?:of\s|de\s)?(?P<m1>{_MONTH})\b\.?{_YEAR.format('y1')}"
    rf"|\b(?P<m2>{_MONTH})\.?\s{_DAY.format('d2')}\b{_YEAR.format('y2')}"
    r"|\b(?P<d3>\d{1,2})\.\s?(?P<m3>\d{1,2})\.(?P<y3>(?:19|20)\d\d)?"
    r"|\b(?P<d4>\d{1,2})/(?P<m4>\d{1,2})(?:/(?P<y4>(?:19|20)\d\d))?\b",
    re.IGNORECASE,
)
AMOUNT = (
    r"(?:(?:[€$£]|EUR\s|USD\s|GBP\s|CHF\s)\s?\d[\d.,']*\d|(?:[€$£]|EUR\s|USD\s|GBP\s|CHF\s)\s?\d"
    r"|\d[\d.,']*\s?(?:[€$£]|euros?|dollars?|pounds?|francs?|bucks|quid|eur|usd|gbp|chf)\b|\d[\d.,']*\s?[€$£])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    month: int
    day: int
    year: int | None
    certain: bool  # false: the numbers could be read in another order


def day_in(text: str) -> Day | None:
    """The first day that a text names."""
    found = DAY.search(text)
    if found is None:
        return None
    certain = True
    if found["iso"]:
        year, month, day = (int(part) for part in found["iso"].split("-"))
    else:
        number = next(number for number in "1234" if found[f"d{number}"])
        name, day, year = found[f"m{number}"], int(found[f"d{number}"]), int(found[f"y{number}"] or 0)
        month = int(name) if name.isdigit() else _MONTH_OF[name.casefold()]
        certain = number != "4" or day > 12  # some write the month first
        if month > 12 >= day:
            day, month, certain = month, day, True
    try:
        date(year or 2024, month, day)
    except ValueError:
        return None
    return Day(month=month, day=day, year=year or None, certain=certain)


def when(text: str, today: date) -> date | None:
    """The day on which something happened, if the text says so."""
    folded = text.casefold()
    if re.search(r"\b(today|this (morning|afternoon|evening)|tonight|just now)\b", folded):
        return today
    if re.search(r"\b(yesterday|last night)\b", folded):
        return today - timedelta(days=1)
    named = day_in(text)
    if named is None or not named.certain:
        return None
    year = named.year or (today.year if (named.month, named.day) <= (today.month, today.day) else today.year - 1)
    try:
        return date(year, named.month, named.day)
    except ValueError:
        return None


def is_person(words: str) -> bool:
    """Whether what looks like a person may be one."""
    parts = words.split()
    return bool(_KIN_WORD.match(words)) or parts[0].casefold() in ("my", "our") or parts[0].casefold() not in _NOBODY


def has_name(words: str) -> bool:
    """A name says more than "my sister"."""
    return not _KIN_WORD.match(words)


VERSION = "local-1"
MAX_TEXT = 20_000  # characters that are looked through
MAX_SENTENCE = 400  # longer ones are not sentences
_NOT_SO = re.compile(
    r"\b(not|never|no longer|nobody|\w+n['’]t|if|wish|would|could|should|might|will|gonna|going to|want(?:s|ed)? to|"
    r"need to|have to|plan(?:ning)? to|remind me|let['’]?s|hope|maybe|perhaps|pretend|imagine|said that|nicht|pas)\b",
    re.IGNORECASE,
)
_BIRTHDAY = "birthday|b-day|geburtstag|anniversaire|cumpleaños|compleanno"
_EVENTS = (
    ("wedding", r"(?:got|just got|is getting) married"),
    ("engagement", r"(?:got|is|just got) engaged"),
    ("separation", r"(?:got|is getting) divorced|split up|separated|broke up"),
    ("birth", r"had (?:a|their|her|his) (?:baby|son|daughter)|gave birth|became a (?:father|mother)"),
    ("pregnancy", r"is pregnant|is expecting"),
    ("death", r"died|passed away"),
    ("move", r"(?:has |just )?moved (?:in )?to|is moving to"),
    ("new_job", r"(?:has |just )?(?:started|got|found) (?:a |her |his |their )?new job|was promoted|got promoted"),
    ("graduation", r"(?:has |just )?graduated"),
    ("retirement", r"(?:has |just )?retired"),
    ("illness", r"is in (?:the )?hospital|had surgery|broke (?:her|his) \w+"),
)
_FACTS = (
    ("likes", r"(?:really )?(?:likes|loves|adores|enjoys)"),
    ("dislikes", r"(?:really )?(?:hates|dislikes|detests|can't stand)"),
    ("allergy", r"is allergic to"),
    ("works_at", r"works (?:at|for)"),
    ("works_as", r"works as"),
    ("lives_in", r"lives in"),
    ("speaks", r"speaks"),
    ("studies", r"studies|is studying"),
    ("diet", r"is (?=vegan\b|vegetarian\b|gluten)"),
)
_FEELINGS = (
    ("worried", r"worried about"),
    ("angry", r"(?:angry|mad|furious|annoyed) (?:at|with)"),
    ("proud", r"proud of"),
    ("grateful", r"(?:grateful|thankful) (?:to|for)"),
    ("happy", r"(?:happy|glad|excited) for"),
    ("upset", r"(?:upset|disappointed) (?:with|in|about)"),
    ("missing", r"miss(?:ing)?"),
)

Data = Callable[["re.Match[str]", str, date], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    signal_type: SignalType
    pattern: re.Pattern[str]
    data: Data
    confidence: float = 0.9  # for a person who is named


def extract(text: str, today: date) -> tuple[Extraction, ...]:
    """What a text tells about people."""
    found: dict[tuple[Any, ...], Extraction] = {}
    sentences = (" ".join(text[start:end].split()) for start, end in pieces_of(text[:MAX_TEXT]))
    for sentence in dict.fromkeys(sentences):  # the same sentence again says nothing new
        for one in _of_sentence(sentence, today):
            found.setdefault((one.signal_type, one.contact_hint, str(one.data)), one)
    return tuple(found.values())[:MAX_SIGNALS]


def _of_sentence(sentence: str, today: date) -> Iterator[Extraction]:
    if not sentence or len(sentence) > MAX_SENTENCE or "?" in sentence or sentence[0] in "\"'“«>":
        return
    unsure = bool(_NOT_SO.search(sentence))
    for rule in RULES:
        # A day stays what it is in every kind of sentence; what people did must have happened.
        if unsure and rule.signal_type is not SignalType.DATE:
            continue
        for match in rule.pattern.finditer(sentence):
            if (one := _extraction(rule, match, sentence, today)) is not None:
                yield one


def _extraction(rule: Rule, match: re.Match[str], sentence: str, today: date) -> Extraction | None:
    person = match["who"]
    if not is_person(person):
        return None
    data = rule.data(match, sentence, today)
    if data is None:
        return None
    certain = data.get("_certain", True)
    confidence = rule.confidence - (0.0 if has_name(person) else 0.05) - (0.0 if certain else 0.3)
    try:
        given = {key: value for key, value in data.items() if key != "_certain"}
        return checked(rule.signal_type, confidence, person, given)
    except ClassificationError:
        return None


# --- what each kind takes from its sentence --------------------------------------------------------------------------


def _date(match: re.Match[str], sentence: str, _today: date) -> Mapping[str, Any] | None:
    named = day_in(sentence)
    if named is None:
        return None
    label = match["label"].casefold()
    label = "birthday" if re.fullmatch(_BIRTHDAY + "|was born|geboren|née?|nació", label) else label
    return {"label": label, "month": named.month, "day": named.day, "year": named.year, "_certain": named.certain}


def _described(field: str, **fixed: str) -> Data:
    """What the kind of rule says, the amount if it has one, and the whole sentence."""

    def data(match: re.Match[str], sentence: str, _today: date) -> Mapping[str, Any]:
        amount = {"amount": match["amount"].strip()} if "amount" in match.re.groupindex else {}
        return fixed | amount | {field: clean_line(sentence, 500)}

    return data


def _fact(key: str) -> Data:
    return lambda match, _sentence, _today: (
        {"key": key, "value": _rest(match["what"])} if _rest(match["what"]) else None
    )


def _interaction(kind: str) -> Data:
    def data(_match: re.Match[str], sentence: str, today: date) -> Mapping[str, Any]:
        happened = when(sentence, today)
        occurred_at = happened.isoformat() if happened else None
        return {"type": kind, "summary": clean_line(sentence, 500), "occurred_at": occurred_at}

    return data


def _gift(match: re.Match[str], sentence: str, _today: date) -> Mapping[str, Any] | None:
    occasion = re.search(
        r"\bfor (?:her|his|their|the)?\s?(birthday|wedding|christmas|anniversary|graduation)\b", sentence, re.I
    )
    what = re.sub(r" for (?:her|his|their|the|christmas)\b.*$", "", _rest(match["what"]), flags=re.IGNORECASE)
    return {"description": what, "occasion": occasion[1].casefold() if occasion else None} if what else None


def _contact(match: re.Match[str], _sentence: str, _today: date) -> Mapping[str, Any] | None:
    details = _rest(match["what"])
    return {"name": match["who"], "details": details} if details and has_name(match["who"]) else None


def _rest(text: str) -> str:
    return clean_line(text, 300).strip(" .,;:!")


# --- the rules -------------------------------------------------------------------------------------------------------


def _rule(kind: SignalType, pattern: str, data: Data, confidence: float = 0.9) -> Rule:
    filled = pattern.replace("{P}", f"(?P<who>{PERSON})").replace("{A}", f"(?P<amount>{AMOUNT})")
    return Rule(signal_type=kind, pattern=re.compile(filled, re.IGNORECASE), data=data, confidence=confidence)


_WHAT = r"(?P<what>[^.!;]{2,200})"
_THING = r"(?P<what>(?:an?|some|two|three|the|her|his)\s[^.!;]{2,120})"
_LONG_AGO = 0.95
_LENT, _BORROWED = _described("description", direction="lent"), _described("description", direction="borrowed")
_MEALS = "lunch|dinner|breakfast|brunch|coffee|drinks|a beer|a drink|tea"

RULES: tuple[Rule, ...] = (
    _rule(SignalType.DATE, rf"\b{{P}}['’]s?\s(?P<label>{_BIRTHDAY}|wedding anniversary|anniversary)\b", _date, 0.92),
    _rule(SignalType.DATE, r"\b{P}\s(?P<label>was born)\b", _date, 0.92),
    _rule(SignalType.DATE, r"\b{P}s?\s(?:hat|feiert)\b.{0,30}\b(?P<label>geburtstag)\b", _date, 0.9),
    _rule(SignalType.DATE, r"\b(?P<label>anniversaire|cumpleaños|compleanno)\s(?:de|di|d['’])\s?{P}", _date, 0.9),
    *(
        _rule(SignalType.LIFE_EVENT, rf"\b{{P}}\s(?:{phrases})\b", _described("description", event=event))
        for event, phrases in _EVENTS
    ),
    _rule(SignalType.INTERACTION, rf"\b(?:had|grabbed|got)\s(?:{_MEALS})\swith\s{{P}}", _interaction("meal")),
    _rule(SignalType.INTERACTION, r"\b(?:met|met up)\s(?:with\s)?{P}", _interaction("met"), 0.88),
    _rule(SignalType.INTERACTION, r"\b(?:ran|bumped)\sinto\s{P}", _interaction("met")),
    _rule(SignalType.INTERACTION, r"\b(?:called|phoned|rang|facetimed)\s{P}", _interaction("call"), 0.86),
    _rule(SignalType.INTERACTION, r"\b(?:spoke|talked|chatted)\s(?:to|with)\s{P}", _interaction("call"), 0.86),
    _rule(SignalType.INTERACTION, r"\bvisited\s{P}", _interaction("visit"), 0.7),  # a place, as often as not
    *(_rule(SignalType.FACT, rf"\b{{P}}\s(?:{phrases})\s?{_WHAT}", _fact(key), 0.88) for key, phrases in _FACTS),
    *(
        _rule(
            SignalType.SENTIMENT,
            rf"\bI(?:['’]m|\sam|\sfeel)?\s(?:so\s|really\s|very\s)*(?:{phrases})\s{{P}}",
            _described("context", emotion=emotion),
            0.86,
        )
        for emotion, phrases in _FEELINGS
    ),
    _rule(SignalType.GIFT, rf"\b(?:bought|got|gave|made)\s{{P}}\s{_THING}", _gift),
    _rule(SignalType.GIFT, rf"\b(?:bought|gave)\s{_THING}\s(?:for|to)\s{{P}}", _gift, 0.88),
    _rule(SignalType.GIFT, rf"\b{{P}}\sgave\s(?:me|us)\s{_THING}", _gift),
    _rule(SignalType.GIFT, rf"\bgift idea for\s{{P}}\s?[:,-]\s?{_WHAT}", _gift),
    _rule(SignalType.LOAN, r"\b(?:lent|loaned)\s{P}\s{A}", _LENT, _LONG_AGO),
    _rule(SignalType.LOAN, r"\b(?:lent|loaned)\s{A}\sto\s{P}", _LENT, _LONG_AGO),
    _rule(SignalType.LOAN, r"\b{P}\sowes\s(?:me|us)\s{A}", _LENT, _LONG_AGO),
    _rule(SignalType.LOAN, r"\b{P}\sborrowed\s{A}\sfrom\s(?:me|us)\b", _LENT, _LONG_AGO),
    _rule(SignalType.LOAN, r"\bborrowed\s{A}\sfrom\s(?!me\b|us\b){P}", _BORROWED, _LONG_AGO),
    _rule(SignalType.LOAN, r"\bI\sowe\s{P}\s{A}", _BORROWED, _LONG_AGO),
    _rule(SignalType.LOAN, r"\b{P}\s(?:lent|loaned)\s(?:me|us)\s{A}", _BORROWED, _LONG_AGO),
    _rule(SignalType.LOAN, r"\bhabe\s{P}\s{A}\s(?:geliehen|geborgt)\b", _LENT),
    _rule(SignalType.LOAN, r"\bvon\s{P}\s{A}\s(?:geliehen|geborgt)\b", _BORROWED),
    _rule(SignalType.LOAN, r"\bprêté\s{A}\sà\s{P}", _LENT),
    _rule(SignalType.LOAN, r"\b(?:presté|prestado|prestato)\s{A}\sa\s{P}", _LENT),
    _rule(SignalType.CONTACT, r"\bmet\s{P},\s(?P<what>(?:an?|the|our|my|who)\s[^.!;]{2,120})", _contact),
    _rule(
        SignalType.CONTACT,
        r"\b{P}['’]s\s(?:new\s)?(?P<what>(?:phone|(?:phone\s)?number|e-?mail|address)(?:\saddress)?\sis\s[^!;]{3,99})",
        _contact,
        0.92,
    ),
)
