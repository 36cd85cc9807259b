"""People, days and amounts as texts write them: the words that the rules of `local.py` are made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta

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
    if found["iso"]:
        year, month, day = (int(part) for part in found["iso"].split("-"))
        return _real(month, day, year, True)
    for number in "1234":
        if found[f"d{number}"]:
            year_text = found[f"y{number}"]
            day, month = int(found[f"d{number}"]), _month(found[f"m{number}"])
            # Some write the month first.
            certain = number != "4" or day > 12
            if month > 12 >= day:
                day, month, certain = month, day, True
            return _real(month, day, int(year_text) if year_text else None, certain)
    return None


def when(text: str, today: date) -> date | None:
    """The day on which something happened, if the text says so."""
    said = text.casefold()
    if re.search(r"\b(today|this (morning|afternoon|evening)|tonight|just now)\b", said):
        return today
    if re.search(r"\b(yesterday|last night)\b", said):
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


def _month(text: str) -> int:
    return int(text) if text.isdigit() else _MONTH_OF[text.casefold()]


def _real(month: int, day: int, year: int | None, certain: bool) -> Day | None:
    try:
        date(year or 2024, month, day)
    except ValueError:
        return None
    return Day(month=month, day=day, year=year, certain=certain)
