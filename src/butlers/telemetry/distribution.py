"""Measured values summed into buckets here, read when somebody asks.

Observing happens several times for every message; the SDK's own way costs more than the rest of the telemetry
together. It is used where its histograms leave the process (OTLP), and this where they are only read (`/metrics`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Attributes = Mapping[str, str | bool | int]


@dataclass(slots=True, kw_only=True)
class Point:
    """One distribution: how many values fell into each bucket."""

    attributes: Attributes
    explicit_bounds: Sequence[float]
    bucket_counts: list[int]
    sum: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The distributions of one metric, by attributes."""

    bounds: Sequence[float]
    _points: dict[frozenset[tuple[str, str | bool | int]], Point] = field(default_factory=dict)

    def record(self, value: float, attributes: Attributes) -> None:
        key = frozenset(attributes.items())
        point = self._points.get(key)
        if point is None:
            empty = [0] * (len(self.bounds) + 1)
            point = Point(attributes=dict(attributes), explicit_bounds=self.bounds, bucket_counts=empty)
            self._points[key] = point
        point.bucket_counts[bisect_left(self.bounds, value)] += 1
        point.sum += value
        point.count += 1

    def points(self) -> list[Point]:
        return list(self._points.values())
