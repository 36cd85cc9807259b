"""The eight kinds of things a message may tell about people, and the exact form of each.

| signal_type | data |
|---|---|
| contact | name, details |
| interaction | type, summary, occurred_at |
| life_event | event, description |
| date | label, month, day, year? |
| fact | key, value |
| sentiment | emotion, context |
| gift | description, occasion |
| loan | amount, direction lent \\| borrowed, description |

Confidence is a number from 0 to 1: above 0.80 is high, below 0.40 is low.
"""

from __future__ import annotations

import calendar
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import pydantic
from pydantic import Field, StringConstraints, model_validator

from butlers.butler.runtime import Prompt
from butlers.contracts.envelope import Value
from butlers.errors import ClassificationError
from butlers.switchboard.routing.llm_answer import clean_line, confidence_of, exactly, message_data, strict_json
from butlers.switchboard.routing.llm_router import Asker, Skill

HIGH, LOW = 0.8, 0.4
MAX_PREVIEW = 200  # characters
MAX_SIGNALS = 10  # of one message
MAX_HINT = 120

Short = Annotated[str, StringConstraints(min_length=1, max_length=120)]
Line = Annotated[str, StringConstraints(max_length=500)]


class SignalType(StrEnum):
    CONTACT = "contact"
    INTERACTION = "interaction"
    LIFE_EVENT = "life_event"
    DATE = "date"
    FACT = "fact"
    SENTIMENT = "sentiment"
    GIFT = "gift"
    LOAN = "loan"


class ContactData(Value):
    name: Short
    details: Line


class InteractionData(Value):
    type: Short
    summary: Line
    occurred_at: date | None


class LifeEventData(Value):
    event: Short
    description: Line


class DateData(Value):
    label: Short
    month: int = Field(ge=1, le=12)
    day: int = Field(ge=1, le=31)
    year: int | None = Field(default=None, ge=1900, le=2200)

    @model_validator(mode="after")
    def _is_a_day(self) -> DateData:
        if self.day > calendar.monthrange(self.year or 2024, self.month)[1]:  # 29 February counts without a year
            raise ValueError("there is no such day")
        return self


class FactData(Value):
    key: Short
    value: Line


class SentimentData(Value):
    emotion: Short
    context: Line


class GiftData(Value):
    description: Line
    occasion: Short | None


class LoanData(Value):
    amount: Short
    direction: Literal["lent", "borrowed"]
    description: Line


DATA: Mapping[SignalType, type[Value]] = {
    SignalType.CONTACT: ContactData,
    SignalType.INTERACTION: InteractionData,
    SignalType.LIFE_EVENT: LifeEventData,
    SignalType.DATE: DateData,
    SignalType.FACT: FactData,
    SignalType.SENTIMENT: SentimentData,
    SignalType.GIFT: GiftData,
    SignalType.LOAN: LoanData,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """One thing that a message tells."""

    signal_type: SignalType
    confidence: float
    contact_hint: str | None  # the name or the word that the text uses for the person
    data: Mapping[str, Any]

    @property
    def is_high(self) -> bool:
        return self.confidence > HIGH


def checked(signal_type: str, confidence: float, contact_hint: str | None, data: Mapping[str, Any]) -> Extraction:
    """An extraction in the exact form of its type; raises `ClassificationError`."""
    try:
        kind = SignalType(signal_type)
        model = DATA[kind].model_validate_json(pydantic.TypeAdapter(dict[str, Any]).dump_json(dict(data)))
    except ValueError:
        raise ClassificationError("a signal does not have the form of its type") from None
    hint = clean_line(contact_hint, MAX_HINT) if contact_hint else None
    return Extraction(
        signal_type=kind,
        confidence=round(confidence, 3),
        contact_hint=hint or None,
        data=model.model_dump(mode="json"),
    )


EXTRACTOR = "relationship-extractor"
PROMPT_VERSION = "extract-1"
TRIGGER = "extraction"
MAX_TEXT = 40_000
_KEYS = {"signal_type", "confidence", "contact_hint", "data"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExtractor:
    skill: Skill
    asker: Asker

    async def extract(self, text: str, request_id: UUID) -> tuple[Extraction, ...]:
        """Raises a `ClassifiedError` when there is no usable answer."""
        if len(text) > MAX_TEXT:
            raise ClassificationError(f"the text is longer than {MAX_TEXT} characters")
        prompt = Prompt(system=self.skill.system(PROMPT_VERSION), text=message_data(text))
        result = await self.asker.pose(prompt, trigger_source=TRIGGER, request_id=request_id)
        return read_extractions(result.text)

    @property
    def version(self) -> str:
        return f"{self.asker.runtime_name}:{PROMPT_VERSION}"


def read_extractions(answer: str) -> tuple[Extraction, ...]:
    """What a model took out of a text, in the exact form, or a `ClassificationError`."""
    found = exactly(strict_json(answer), {"extractions"})["extractions"]
    if not isinstance(found, list) or len(found) > MAX_SIGNALS:
        raise ClassificationError(f"the model's answer is not a list of at most {MAX_SIGNALS} signals")
    return tuple(_one(item) for item in found)


def _one(item: Any) -> Extraction:
    given = exactly(item, _KEYS)
    signal_type, hint, data = given["signal_type"], given["contact_hint"], given["data"]
    if not isinstance(signal_type, str) or not isinstance(hint, str | None) or not isinstance(data, dict):
        raise ClassificationError("a signal does not have the form of its type")
    return checked(signal_type, confidence_of(given["confidence"]), hint, data)
