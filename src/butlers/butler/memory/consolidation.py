"""The job `memory_consolidation`: episodes are claimed, read, and become facts and rules.

    bury what kills its readers -> claim a batch -> read -> facts, rules and "consolidated" in one transaction
                                        ^             │
                                        └─────────────┴─ unreadable: back with one attempt more, dead after the fifth

- Two processes never read one episode at the same time (claims skip what another locks, and a lease lasts 300 s), and
  a late one writes nothing: its token is no longer the one in the row.
- Facts and their episodes' new status commit together, so a crash repeats a reading and never half of one.
- The more often an episode was tried, the smaller its batch: one that cannot be read ends up alone.
- A run tries each episode once. A reader that is away ends the run, and nobody's attempt is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Protocol
from uuid import UUID

import pydantic
from pydantic import Field, StringConstraints
from pydantic_core import to_json

from butlers.butler.memory.episodes import Episode, Episodes
from butlers.butler.memory.extraction import MAX_CONTENT, MAX_NAME, Permanence, corrections, statements
from butlers.butler.memory.facts import Correction, Facts, NewFact, Rules
from butlers.butler.sessions import Spawner
from butlers.clock import Clock
from butlers.contracts.envelope import Value
from butlers.errors import ClassificationError, ClassifiedError
from butlers.storage.database import Database
from butlers.telemetry import get_logger

log = get_logger("butlers.memory")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What some episodes say."""

    facts: tuple[NewFact, ...] = ()
    corrections: tuple[Correction, ...] = ()


class Reader(Protocol):
    """Raises a retryable `ClassifiedError` when it is away, and anything else when these episodes are unreadable."""

    @property
    def batch(self) -> int:
        """Episodes that are read at once, the first time they are tried."""

    @property
    def batches(self) -> int:
        """Batches of one run at most."""

    async def read(self, episodes: Sequence[Episode]) -> Reading: ...


class LocalReader:
    """Plain sentences by rules: no network, no model."""

    batch = 100
    batches = 50

    async def read(self, episodes: Sequence[Episode]) -> Reading:
        """Only what a person said counts: a butler's own answer would teach it its own guesses."""
        return Reading(
            facts=tuple(fact for episode in episodes for fact in facts_of(episode)),
            corrections=tuple(
                Correction(content=correction, episode_id=episode.id)
                for episode in episodes
                for correction in dict.fromkeys(corrections(episode.content))
            ),
        )


def facts_of(episode: Episode) -> list[NewFact]:
    return [
        NewFact(**asdict(statement), origin="local", observed_at=episode.created_at, source_episode_id=episode.id)
        for statement in statements(episode.content, episode.speaker)
    ]


Outcome = Literal["read", "unreadable", "reader away"]


def batch_size(first: int, attempts: int) -> int:
    """A quarter for every attempt that failed."""
    return max(1, first >> 2 * attempts)


class Consolidation:
    def __init__(
        self, *, database: Database, episodes: Episodes, facts: Facts, rules: Rules, reader: Reader, clock: Clock
    ) -> None:
        self._database = database
        self._episodes = episodes
        self._facts = facts
        self._rules = rules
        self._reader = reader
        self._clock = clock

    async def run(self, _arguments: Mapping[str, Any]) -> dict[str, Any]:
        """One run; how many episodes were read, given back and given up, and what came of them."""
        started = self._clock.now()
        tally: Counter[str] = Counter(dead=await self._episodes.bury())
        for _ in range(self._reader.batches):
            token, batch = await self._episodes.claim(
                run_started=started,
                now=self._clock.now(),
                size=lambda attempts: batch_size(self._reader.batch, attempts),
            )
            if not batch or await self._read(token, batch, tally) == "reader away":
                break
        names = ("claimed", "consolidated", "returned", "dead", "facts", "rules")
        return {name: tally[name] for name in names}

    async def _read(self, token: UUID, batch: Sequence[Episode], tally: Counter[str]) -> Outcome:
        tally["claimed"] += len(batch)
        try:
            reading = await self._reader.read(batch)
        except ClassifiedError as error:
            log.warning("episodes not read", error=error, error_class=error.error_class, count=len(batch))
            return await self._give_back(token, batch, tally, problem=error.message, excused=error.retryable)
        except Exception as error:
            log.error("episodes not read", error=error, count=len(batch))
            return await self._give_back(token, batch, tally, problem=type(error).__name__, excused=False)
        await self._write(token, batch, reading, tally)
        return "read"

    async def _give_back(
        self, token: UUID, batch: Sequence[Episode], tally: Counter[str], *, problem: str, excused: bool
    ) -> Outcome:
        statuses = await self._episodes.release(batch, token, problem=problem, excused=excused)
        tally["returned"] += statuses.count("pending")
        tally["dead"] += statuses.count("dead")
        return "reader away" if excused else "unreadable"

    async def _write(self, token: UUID, batch: Sequence[Episode], reading: Reading, tally: Counter[str]) -> None:
        now = self._clock.now()
        async with self._database.transaction() as connection:
            ours = await self._episodes.finish(connection, batch, token, now=now)
            facts = [fact for fact in reading.facts if fact.source_episode_id in ours]
            for fact in facts:
                await self._facts.store(connection, fact, now=now)
            noted = [correction for correction in reading.corrections if correction.episode_id in ours]
            made = [await self._rules.note(connection, correction, now=now) for correction in noted]
        tally.update(consolidated=len(ours), facts=len(facts), rules=sum(made))


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
    named = {fact.episode for fact in answer.facts} | {correction.episode for correction in answer.corrections}
    if not named <= numbered.keys():
        raise ClassificationError("the model's answer names an episode that it was not given")
    return Reading(
        facts=tuple(_fact(fact, numbered[fact.episode]) for fact in answer.facts),
        corrections=tuple(
            Correction(content=correction.content.strip(), episode_id=numbered[correction.episode].id)
            for correction in answer.corrections
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
