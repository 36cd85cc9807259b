"""The relationship extractor with a model: the same signals, checked by the same forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from butlers.butler.runtime import Prompt
from butlers.errors import ClassificationError
from butlers.switchboard.extraction.signals import MAX_SIGNALS, Extraction, checked
from butlers.switchboard.routing.llm.answer import confidence_of, exactly, strict_json
from butlers.switchboard.routing.llm.asking import Asker
from butlers.switchboard.routing.llm.data import message_data
from butlers.switchboard.routing.llm.skill import Skill

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
