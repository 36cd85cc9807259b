"""Conversations: what was said before a message, and the butler that follows from it (decision 0061)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.runtime import Speaker
from butlers.channels.channel import Threads
from butlers.channels.registry import channel_of
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries
from butlers.switchboard.registry import FALLBACK
from butlers.switchboard.routing.decision import Decision, RoutingQuestion, whole
from butlers.switchboard.routing.features import words

CHAT_MESSAGES = 30
CHAT_WINDOW = timedelta(minutes=15)
MAX_TOKENS = 50_000
CHARACTERS_PER_TOKEN = 4
MOST_MESSAGES = 2_000  # of one conversation, however short they are
FOLLOW_UP_CONFIDENCE = 0.6  # a good guess, not an address
_ORIGIN = re.compile(r"\[([a-z][a-z0-9_]{0,62})\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    speaker: Speaker
    text: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    database: Database
    queries: Queries  # of butlers.switchboard.routing
    follow_up_s: float  # in which a chat line that says nothing itself goes where the last one went

    async def decide(self, question: RoutingQuestion, names: frozenset[str]) -> Decision | None:
        """The butler that a message is for by its place in a conversation: it answers the butler's words, its chain is
        with one butler, or it says nothing itself and comes soon after something for one.
        """
        if (name := replied_to(question)) in names and name is not None:
            return whole(question.text, name, router="thread", confidence=1.0, why=f"it answers what {name} said")
        threads = channel_of(question.channel).threads
        if question.thread is None or question.request_id is None or question.received_at is None:
            return None
        in_chain, in_chat = threads is Threads.CHAIN, threads is Threads.CHAT
        if not (in_chain or (in_chat and has_no_content(question.text))):
            return None
        query = self.queries.last_choice_in_thread if in_chain else self.queries.last_in_thread
        row = await self.database.fetchrow(query, question.received_at, question.request_id)
        name = one_butler(row["routing_output"], row["override"]) if row else None
        if row is None or name not in names or name is None:
            return None
        if in_chain:
            return whole(question.text, name, router="thread", confidence=1.0, why=f"its thread is with {name}")
        if name == FALLBACK or question.received_at - row["received_at"] > timedelta(seconds=self.follow_up_s):
            return None
        why = f"it says nothing itself and comes after something for {name}"
        return whole(question.text, name, router="thread", confidence=FOLLOW_UP_CONFIDENCE, why=why)

    async def before(self, question: RoutingQuestion) -> tuple[Message, ...]:
        """What was said before this message in its conversation, oldest first."""
        if question.thread is None or question.request_id is None or question.received_at is None:
            return ()
        rows = await self._messages(question.channel, question.received_at, question.request_id)
        answers = await self.database.fetch(self.queries.answers_to, [row["request_id"] for row in rows])
        return newest(_in_order(rows, answers), tokens=MAX_TOKENS - tokens_of(question.text))

    async def _messages(self, channel: str, received_at: datetime, request_id: UUID) -> list[Record]:
        place = (received_at, request_id)
        if channel_of(channel).threads is Threads.CHAIN:
            characters = MAX_TOKENS * CHARACTERS_PER_TOKEN
            return await self.database.fetch(self.queries.chain_before, *place, characters, MOST_MESSAGES)
        since = received_at - CHAT_WINDOW
        return await self.database.fetch(self.queries.chat_before, *place, CHAT_MESSAGES, since, MOST_MESSAGES)


def tokens_of(text: str) -> int:
    """An estimate that never says none for something."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def newest(messages: Sequence[Message], *, tokens: int) -> tuple[Message, ...]:
    """The newest of what was said, oldest first; of the one that fits only in part, its beginning."""
    selected: list[Message] = []
    for one in reversed(messages):
        size = tokens_of(one.text)
        if size > tokens:
            if tokens > 0:
                selected.append(replace(one, text=one.text[: tokens * CHARACTERS_PER_TOKEN]))
            break
        selected.append(one)
        tokens -= size
    return tuple(reversed(selected))


def _in_order(rows: Iterable[Record], answers: Sequence[Record]) -> list[Message]:
    """The messages and their answers: those that were sent, else what the request's reply holds."""
    messages = [Message(speaker=Speaker.BUTLER, text=answer["message"], at=answer["created_at"]) for answer in answers]
    answered = {answer["request_id"] for answer in answers}
    for row in rows:
        messages.append(Message(speaker=Speaker.USER, text=row["normalized_text"], at=row["received_at"]))
        replies = {} if row["request_id"] in answered else (row["aggregated_reply"] or {}).get("answers") or {}
        for text in replies.values():
            if isinstance(text, str) and text:
                messages.append(Message(speaker=Speaker.BUTLER, text=text, at=row["received_at"]))
    return sorted(messages, key=lambda one: one.at)


def replied_to(question: RoutingQuestion) -> str | None:
    """The name that Messenger put in front of the message of ours that is answered here."""
    inbound = channel_of(question.channel).inbound
    text = inbound.replied_to(question.raw_payload, question.endpoint) if inbound is not None else None
    found = _ORIGIN.match(text) if text is not None else None
    return found[1] if found else None


def one_butler(routing_output: Any, override: Any) -> str | None:
    """Who got it, when it was one; what an operator decided counts more."""
    decided = _mapping(override)
    if decided.get("action") == "manual_reroute" and isinstance(decided.get("target"), str):
        return str(decided["target"])
    segments = _mapping(routing_output).get("segments")
    names = {_mapping(segment).get("butler") for segment in segments} if isinstance(segments, list) else set()
    [name] = names if len(names) == 1 else [None]
    return name if isinstance(name, str) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


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


def has_no_content(text: str) -> bool:
    """Only words that point at something said before, numbers, or signs."""
    if len(text) > FEW_CHARACTERS:
        return False
    found = words(text)
    return len(found) <= FEW_WORDS and all(word in _EMPTY or word.isdigit() for word in found)
