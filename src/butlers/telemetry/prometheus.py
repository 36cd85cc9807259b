"""The numbers of one butler as Prometheus text.

The ready-made exporter appends the unit to the name (`..._latency_ms_milliseconds`), and names are a contract of the
seeds. So the translation is written here, on top of the client library's own families, which know the text format.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from opentelemetry.sdk.metrics.export import (
    Gauge,
    Histogram,
    HistogramDataPoint,
    InMemoryMetricReader,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as Measured
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from butlers.telemetry.catalogue import Metric

Attributes = Mapping[str, str | bool | int]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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


class Exposition(Collector):
    """Reads one meter provider when asked, and no other."""

    def __init__(
        self,
        reader: InMemoryMetricReader,
        catalogue: Mapping[str, Metric],
        identity: Mapping[str, str],
        distributions: Mapping[str, Distribution],
    ) -> None:
        self._reader = reader
        self._distributions = distributions
        self._catalogue = catalogue
        self._identity = dict(identity)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        yield InfoMetricFamily("target", "Whose numbers these are", value=self._identity)
        for measured in self._measured():
            metric = self._catalogue.get(measured.name)
            if metric is not None:
                yield _family(metric, measured)
        for name, distribution in self._distributions.items():
            if points := distribution.points():
                metric = self._catalogue[name]
                yield _histogram(metric, sorted(metric.attributes), points)

    def _measured(self) -> Iterator[Measured]:
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                yield from scope.metrics


def _family(metric: Metric, measured: Measured) -> Family:
    # Every declared attribute is a label, given or not: one family, one set of labels.
    labels = sorted(metric.attributes)
    match measured.data:
        case Histogram(data_points=points):
            return _histogram(metric, labels, list(points))
        case Sum(data_points=points, is_monotonic=True):
            counter = CounterMetricFamily(metric.prometheus_name, metric.description, labels=labels)
            return _fill(counter, labels, list(points))
        case Sum(data_points=points) | Gauge(data_points=points):
            gauge = GaugeMetricFamily(metric.prometheus_name, metric.description, labels=labels)
            return _fill(gauge, labels, list(points))
        case other:
            raise TypeError(f"{metric.name} is measured as {type(other).__name__}, which no metric kind makes")


def _fill(family: CounterMetricFamily | GaugeMetricFamily, labels: list[str], points: list[NumberDataPoint]) -> Family:
    for point in points:
        family.add_metric(_values(labels, point), point.value)
    return family


def _histogram(metric: Metric, labels: list[str], points: Sequence[HistogramDataPoint | Point]) -> Family:
    family = HistogramMetricFamily(metric.prometheus_name, metric.description, labels=labels)
    for point in points:
        bounds = [*(str(float(bound)) for bound in point.explicit_bounds), "+Inf"]
        counts = accumulate(point.bucket_counts)
        family.add_metric(_values(labels, point), list(zip(bounds, counts, strict=True)), point.sum)
    return family


def _values(labels: list[str], point: NumberDataPoint | HistogramDataPoint | Point) -> list[str]:
    given = point.attributes or {}
    return [_value(given.get(label, "")) for label in labels]


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
