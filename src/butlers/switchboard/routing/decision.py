"""What is to be routed, and the decision about it as it is stored and dispatched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from butlers.butler.runtime import Turn

Router = Literal["policy", "thread", "local", "llm", "fallback"]
FallbackReason = Literal["ambiguous", "classification_failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of the original text and the butler it goes to; offsets keep the author's words."""

    segment_id: str
    butler: str
    start: int
    end: int
    confidence: float
    rationale: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    router: Router
    segments: tuple[Segment, ...]
    why: str
    fallback_reason: FallbackReason | None = None
    prompt_version: str | None = None
    model_version: str | None = None  # of the local classifier or of the LLM, whichever was asked last
    tokens: int | None = None  # that the model took to decide; None: it was not asked, or did not say

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, stored: Mapping[str, Any]) -> Decision:
        """Also what an earlier version of this program has stored, or a later one."""
        known = {field.name for field in fields(cls)} & stored.keys()
        segments = tuple(Segment(**segment) for segment in stored["segments"])
        return cls(**{name: stored[name] for name in known} | {"segments": segments})


def whole(
    text: str,
    butler: str,
    *,
    router: Router,
    confidence: float,
    why: str,
    fallback_reason: FallbackReason | None = None,
) -> Decision:
    """The whole text to one butler."""
    segment = Segment(
        segment_id="s1", butler=butler, start=0, end=len(text), confidence=round(confidence, 3), rationale=why
    )
    return Decision(router=router, segments=(segment,), why=why, fallback_reason=fallback_reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingQuestion:
    text: str
    channel: str = "api"
    sender: str = ""
    endpoint: str = ""
    thread: str | None = None
    pinned_target: str | None = None
    policy_tier: str = "default"
    request_id: UUID | None = None  # None: nothing is stored, the caller only asks
    received_at: datetime | None = None
    raw_payload: Mapping[str, Any] | None = None
    history: Sequence[Turn] = ()  # what was said before, oldest first: context, never routed
