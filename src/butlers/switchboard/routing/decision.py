"""The routing decision as a value, as it is stored and as it is dispatched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Router = Literal["policy", "local", "fallback"]


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

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, stored: Mapping[str, Any]) -> Decision:
        segments = tuple(Segment(**segment) for segment in stored["segments"])
        return cls(router=stored["router"], segments=segments, why=stored["why"])
