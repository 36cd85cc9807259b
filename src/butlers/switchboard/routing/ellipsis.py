"""Whether a text says nothing by itself: "yes", "the second one", "tomorrow at 5?", a thumb.

Such words have a meaning only after something else, so whoever was spoken to just before is meant. The list is closed:
a single word that stands for a thing ("weather", "Rechnung") makes a text speak for itself.
"""

from __future__ import annotations

from butlers.switchboard.routing.words import words

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
