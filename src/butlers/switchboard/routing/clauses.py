"""Where a message can be cut: clauses with their places, and how much each cut speaks for a change of subject.

The clauses cover the text from its first character to its last, in order and without a gap; a joining word ("also",
"und", "btw") begins its clause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from butlers.switchboard.routing.features import words

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


FEW_WORDS = 8
FEW_CHARACTERS = 1_000  # nobody writes more to say nothing
# Function words, answers, and words for time and order; English, German, French, Spanish, Italian, Portuguese, Dutch.
_EMPTY = frozenset(
    """
    a an the this that these those it its one ones he she they them him her his their we us our i me my mine you
    your yes yeah yep yup sure ok okay k no nope nah not none maybe perhaps please pls thanks thank thx cheers great
    good fine nice perfect cool right exactly correct wrong done and or but so then also too again still just only
    either neither both all any some more less other another same instead rather is are was were be been am do does
    did don't doesn't didn't can can't could will won't would should let's go ahead take make it's that's what's
    which what who when where why how of to for from in on at by with without as if than into up out about after
    before until till first second third fourth fifth last next previous former latter left now later soon today
    tomorrow tonight yesterday morning noon afternoon evening night monday tuesday wednesday thursday friday
    saturday sunday week month pm o'clock half past quarter ja nein doch nicht gut gerne bitte danke genau stimmt
    klar passt das die der den dem ein eine einen es er sie ich mir mich du dir dich wir uns und oder aber auch noch
    nur wie wann wo warum erste zweite dritte letzte nächste heute morgen gestern abend früh später jetzt um im mit
    ohne für von zu nach vor bis lieber statt oui non si d'accord merci bien parfait le la les un une des ce cet
    cette ça il elle je tu nous vous et ou mais aussi encore premier première deuxième seconde dernier dernière
    aujourd'hui demain hier matin soir à au de pour avec sí vale gracias perfecto el los las una ese esa eso este
    esta esto lo y o pero también primero primera segundo segunda último última hoy mañana ayer tarde noche al del
    para con por sin sì va grazie bene perfetto gli uno quello quella questo questa e ma anche primo prima secondo
    seconda ultimo ultima oggi domani ieri mattina sera sim não obrigado obrigada bom os uma esse essa isso isto mas
    também primeiro hoje amanhã ontem nee graag dank goed het een dat deze dit en maar ook eerste tweede laatste
    vandaag gisteren
    """.split()  # noqa: SIM905 - as a list it would be four hundred lines
)


def says_nothing_itself(text: str) -> bool:
    """Only words that point at something said before, numbers, or signs."""
    if len(text) > FEW_CHARACTERS:
        return False
    said = words(text)
    return len(said) <= FEW_WORDS and all(word in _EMPTY or word.isdigit() for word in said)
