"""Episodes read by the butler's LLM runtime.

The episodes are data in a block of their own (`runtimes/fence.py`); the model is told what to look for and answers in
one strict form. Whatever does not fit the form to the letter is refused as a whole: the episodes are tried again, in
smaller batches, so that one that cannot be read does not take the others with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import pydantic
from pydantic import Field, StringConstraints
from pydantic_core import to_json

from butlers.butler.memory.reading import Reading
from butlers.butler.memory.values import MAX_CONTENT, MAX_NAME, Correction, Episode, NewFact, Permanence
from butlers.butler.sessions import Spawner
from butlers.contracts.envelope import Value
from butlers.errors import ClassificationError

SOURCE = "memory:consolidation"
SUREST = 0.8  # a model's reading is never as sure as what somebody stores on purpose

TASK = """\
You read what happened to an assistant and keep what is worth remembering. The message is a JSON array of episodes:
`episode` (a number), `speaker`, `said` and `answered`.

Answer with one JSON object and nothing else:
{"facts": [{"episode": 1, "subject": "...", "predicate": "...", "content": "...", "permanence": "...",
            "confidence": 0.7}],
 "corrections": [{"episode": 1, "content": "..."}]}

facts: lasting statements about people and things, taken from `said` alone. For "I" and "my" the subject is the
speaker as given. The predicate names one respect ("lives in", "allergy to nuts") and the content what holds in it.
permanence: permanent, stable, standard, volatile or ephemeral. confidence: 0 to 1.
corrections: wishes about how the assistant should act, each as one instruction.
Keep no passwords, codes or card numbers. With nothing to keep, both lists are empty."""

_FENCE = "```"
_Number = Annotated[int, Field(ge=1)]
_Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=r"\S")]
_Content = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CONTENT, pattern=r"\S")]


class ReadFact(Value):
    episode: _Number
    subject: _Name
    predicate: _Name
    content: _Content
    permanence: Permanence
    confidence: Annotated[float, Field(ge=0, le=1)]


class ReadCorrection(Value):
    episode: _Number
    content: Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"\S")]


class Answer(Value):
    """The strict form of a model's answer."""

    facts: list[ReadFact] = Field(max_length=200)
    corrections: list[ReadCorrection] = Field(max_length=100)


class ModelReader:
    batch = 20
    batches = 10

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner

    async def read(self, episodes: Sequence[Episode]) -> Reading:
        numbered = dict(enumerate(episodes, start=1))
        answer = await self._spawner.ask(TASK, as_data(numbered), trigger_source=SOURCE)
        return understood(answer.text, numbered)


def as_data(numbered: Mapping[int, Episode]) -> str:
    return to_json(
        [
            {"episode": number, "speaker": episode.speaker, "said": episode.content, "answered": episode.answer}
            for number, episode in numbered.items()
        ]
    ).decode()


def understood(text: str, numbered: Mapping[int, Episode]) -> Reading:
    """What the model read, or `ClassificationError` when its answer is not in the form that was asked for."""
    answer = _parsed(text)
    named = {fact.episode for fact in answer.facts} | {wish.episode for wish in answer.corrections}
    if not named <= numbered.keys():
        raise ClassificationError("the model's answer names an episode that it was not given")
    return Reading(
        facts=tuple(_fact(fact, numbered[fact.episode]) for fact in answer.facts),
        corrections=tuple(
            Correction(content=wish.content.strip(), episode_id=numbered[wish.episode].id)
            for wish in answer.corrections
        ),
    )


def _parsed(text: str) -> Answer:
    inside = _unfenced(text)
    if "\x00" in inside or "\\u0000" in inside:
        raise ClassificationError("the model's answer holds characters that cannot be stored")
    try:
        return Answer.model_validate_json(inside)
    except (pydantic.ValidationError, UnicodeEncodeError):
        raise ClassificationError("the model's answer is not in the form that was asked for") from None


def _unfenced(text: str) -> str:
    """What stands in a block of Markdown that is the whole text, or the text."""
    block = text.strip()
    language, line_end, inside = block.removeprefix(_FENCE).removesuffix(_FENCE).partition("\n")
    fenced = len(block) > 2 * len(_FENCE) and block.startswith(_FENCE) and block.endswith(f"\n{_FENCE}")
    return inside if fenced and line_end and language.strip() in ("", "json") else text


def _fact(read: ReadFact, episode: Episode) -> NewFact:
    return NewFact(
        subject=read.subject.strip(),
        predicate=read.predicate.strip(),
        content=read.content.strip(),
        permanence=read.permanence,
        confidence=min(read.confidence, SUREST),
        origin="model",
        observed_at=episode.created_at,
        source_episode_id=episode.id,
    )
