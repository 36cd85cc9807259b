"""Where a message can be cut: clauses with their places, and how much each cut speaks for a change of subject.

The clauses cover the text from its first character to its last, in order and without a gap; a joining word ("also",
"und", "btw") begins its clause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HARD, SOFT, FAINT = 2, 1, 0  # a new paragraph or sentence; a joining word; a comma
MANY = 10  # clauses, more than which only the strongest cuts count
MOST = 20  # clauses in a text; what comes later belongs to the last

_TOPIC_CHANGE = (
    "also|btw|by the way|oh and|and also|plus|anyway|separately|on another note|another thing|unrelated|p\\.?\\s?s\\.?"
    "|außerdem|ausserdem|übrigens|ubrigens|ach ja|und noch|au fait|par ailleurs|et aussi|ademas|además|por cierto"
    "|y tambien|y también|inoltre|a proposito|e anche|além disso|alem disso|aliás|ook nog|trouwens|poza tym|przy okazji"
    "|кстати|ещё|и ещё|а ещё|bu arada|ayrıca|ayrica|för övrigt|dessutom|另外|还有|对了|あと|それと|ところで|그리고|参考"
)
_JOINING = (
    "and|but|then|while|und|aber|sowie|et|mais|puis|y|pero|e|ma|poi|mas|en|maar|i|oraz|ale|и|а|но|ve|ama|och|men|og"
    "|और|و|та|і"
)
# A run of white space is looked at once, from its first character: whatever begins with white space begins there.
_CUT = re.compile(
    rf"""
    (?P<hard>\n\s*(?:[-*•–]\s+|\d{{1,9}}[.)]\s+)?|(?<=[.!?…])\s+(?=\S)|(?<=[。！？])|;\s+|(?<!\s)\s+(?=</\w))
  | (?P<change>(?:[,;:.)]\s*|(?<!\s)\s+)(?:[-–—]\s*)?(?=(?:{_TOPIC_CHANGE})\b)|(?<!\s)\s+(?:[-–—]+|/)\s+|\s\+\s)
  | (?P<soft>(?:,|(?<![\s,]))\s+(?=(?:{_JOINING})\s))
  | (?P<faint>,\s+|、|，)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_STRENGTH = {"hard": HARD, "change": HARD, "soft": SOFT, "faint": FAINT}


@dataclass(frozen=True, slots=True)
class Clause:
    start: int
    end: int
    cut: int  # how strong the cut before it is


def clauses(text: str) -> list[Clause]:
    """At least one, covering the text; in a long text sentences are fine enough."""
    every = _cut(text, FAINT)
    return every if len(every) <= MANY else _cut(text, HARD)


def _cut(text: str, least: int) -> list[Clause]:
    found: list[Clause] = []
    start, strength = 0, HARD
    for match in _CUT.finditer(text):
        if _STRENGTH[match.lastgroup or "faint"] < least:
            continue
        if match.end() == start or not text[start : match.end()].strip() or match.end() >= len(text):
            continue
        if len(found) == MOST - 1:
            break
        found.append(Clause(start, match.end(), strength))
        start, strength = match.end(), _STRENGTH[match.lastgroup or "faint"]
    return [*found, Clause(start, len(text), strength)]
