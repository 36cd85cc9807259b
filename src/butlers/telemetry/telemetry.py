"""What one butler tells the outside about itself: metrics and traces.

    Telemetry.create("finance", "host-1")
        ├── MeterProvider  ── InMemoryMetricReader ── Exposition ──> GET /metrics
        │                  └─ OTLP over HTTP, only when an endpoint is configured
        └── TracerProvider ── OTLP over HTTP, only when an endpoint is configured

Several butlers live in one process, so nothing here is global: each has its own providers, and `/metrics` on a
butler's port shows only its own numbers. The current span is the exception by design: it travels with the task, so
that a call from one butler to another in the same process stays one trace.

Exceptions are recorded by their type alone, because their messages may quote what people wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from uuid import UUID

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from butlers.clock import Clock
from butlers.telemetry.catalogue import CATALOGUE, Kind, Metric
from butlers.telemetry.prometheus import Distribution, Exposition
from butlers.telemetry.spans import SpanName

Attribute = str | bool | int | None
Record = Callable[[float, dict[str, str | bool | int]], None]

EXPORT_TIMEOUT_S = 2.0  # also what a stop may wait for an endpoint that is gone
SHUTDOWN_TIMEOUT_MS = 2_000
LATENCY_BUCKETS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_W3C = TraceContextTextMapPropagator()


class Telemetry:
    """Records what is in the catalogue and nothing else."""

    def __init__(
        self,
        *,
        meters: MeterProvider,
        tracers: TracerProvider,
        exposition: Exposition,
        metrics: Sequence[Metric],
        clock: Clock,
        traced: bool = True,  # somebody collects spans
        distributions: Mapping[str, Distribution] = MappingProxyType({}),  # histograms that nobody exports
    ) -> None:
        self._meters = meters
        self._tracers = tracers
        self._exposition = exposition
        self._clock = clock
        self._traced = traced
        self._ids = RandomIdGenerator()
        self._tracer = tracers.get_tracer("butlers")
        meter = meters.get_meter("butlers")
        self._records = {metric.name: _record(meter, metric) for metric in metrics if metric.name not in distributions}
        self._records |= {name: distribution.record for name, distribution in distributions.items()}
        self._running = True

    @classmethod
    def create(
        cls,
        butler: str,
        instance: str,
        *,
        clock: Clock,
        otlp_endpoint: str | None = None,
        metrics: Sequence[Metric] = CATALOGUE,
        span_processors: Sequence[SpanProcessor] = (),
    ) -> Telemetry:
        """The telemetry of one butler. `otlp_endpoint` is a base address such as http://127.0.0.1:4318."""
        identity = {"service.namespace": "butlers", "service.name": butler, "service.instance.id": instance}
        resource = Resource.create(dict(identity))
        reader = InMemoryMetricReader()
        readers: list[MetricReader] = [reader, *_otlp_metrics(otlp_endpoint)]
        meters = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
        processors = (*span_processors, *_otlp_spans(otlp_endpoint))
        # With nobody to hand spans to they only lend their ids, which logs and envelopes are joined by.
        sampler = ALWAYS_ON if processors else ALWAYS_OFF
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False, sampler=sampler)
        for processor in processors:
            tracers.add_span_processor(processor)
        labels = {key.replace(".", "_"): value for key, value in identity.items()}
        distributions = _distributions(metrics) if otlp_endpoint is None else {}
        exposition = Exposition(reader, {metric.name: metric for metric in metrics}, labels, distributions)
        return cls(
            meters=meters,
            tracers=tracers,
            exposition=exposition,
            metrics=metrics,
            clock=clock,
            traced=bool(processors),
            distributions=distributions,
        )

    def count(self, metric: Metric, n: int = 1, **attributes: Attribute) -> None:
        """Add to a counter, or step an up-down counter."""
        if metric.kind is Kind.COUNTER and n < 0:
            raise ValueError(f"{metric.name} is a counter and cannot go down")
        self._record(metric, (Kind.COUNTER, Kind.UP_DOWN), n, attributes)

    def observe(self, metric: Metric, value: float, **attributes: Attribute) -> None:
        """Put one measured value into a histogram."""
        self._record(metric, (Kind.HISTOGRAM,), value, attributes)

    def gauge(self, metric: Metric, value: float, **attributes: Attribute) -> None:
        """Say what a value is now."""
        self._record(metric, (Kind.GAUGE,), value, attributes)

    def span(
        self,
        name: SpanName,
        *,
        request_id: UUID | str | None = None,
        parent: Mapping[str, object] | None = None,
        between: tuple[datetime, datetime] | None = None,
        **attributes: Attribute,
    ) -> AbstractContextManager[Span]:
        """Trace a stretch of work, below `parent` (a W3C trace_context) or below the current span.

        Work that is over already, because it was done for many at once, is `between` its two moments.
        """
        allowed = _allowed(name.name, name.attributes, attributes)
        if not self._traced:
            return self._lent(parent)
        if request_id is not None:
            allowed["request_id"] = str(request_id)
        return self._collected(name.name, _below(parent), allowed, between)

    def _lent(self, parent: Mapping[str, object] | None) -> AbstractContextManager[Span]:
        """Nobody collects spans: only an identity for logs and envelopes is needed, the parent's, the one around, or a
        new one.
        """
        around = trace.get_current_span(_below(parent))
        if not around.get_span_context().is_valid:
            trace_id, span_id = self._ids.generate_trace_id(), self._ids.generate_span_id()
            around = NonRecordingSpan(SpanContext(trace_id=trace_id, span_id=span_id, is_remote=False))
        elif not parent:
            return nullcontext(around)
        return trace.use_span(around, record_exception=False, set_status_on_exception=False)

    @contextmanager
    def _collected(
        self,
        name: str,
        context: Context | None,
        attributes: dict[str, str | bool | int],
        between: tuple[datetime, datetime] | None,
    ) -> Iterator[Span]:
        began, ended = between or (self._clock.now(), None)
        span = self._tracer.start_span(name, context=context, attributes=attributes, start_time=_nanoseconds(began))
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as failure:
            span.set_attribute("error.type", type(failure).__qualname__)
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            span.end(_nanoseconds(ended or self._clock.now()))

    @property
    def traced(self) -> bool:
        """Whether somebody collects spans."""
        return self._traced

    def inject(self) -> dict[str, str]:
        """The current span as a W3C trace_context, for an envelope. Empty outside of a span."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier

    def trace_id(self) -> str | None:
        """The current trace as log lines show it, or None outside of a span."""
        context = trace.get_current_span().get_span_context()
        return trace.format_trace_id(context.trace_id) if context.is_valid else None

    def prometheus_text(self) -> bytes:
        """The body of GET /metrics."""
        return self._exposition.text()

    def shutdown(self) -> None:
        """Send what is left and stop. Blocks for about two seconds when the OTLP endpoint is gone."""
        if self._running:
            self._running = False
            self._tracers.shutdown()
            self._meters.shutdown(timeout_millis=SHUTDOWN_TIMEOUT_MS)

    def _record(
        self, metric: Metric, kinds: tuple[Kind, ...], value: float, attributes: Mapping[str, Attribute]
    ) -> None:
        if metric.kind not in kinds:
            raise ValueError(f"{metric.name} is a {metric.kind.value} and is not recorded this way")
        if metric.name not in self._records:
            raise ValueError(f"{metric.name} is not in the catalogue")
        self._records[metric.name](value, _allowed(metric.name, metric.attributes, attributes))


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def _distributions(metrics: Sequence[Metric]) -> dict[str, Distribution]:
    histograms = (metric.name for metric in metrics if metric.kind is Kind.HISTOGRAM)
    return {name: Distribution(bounds=LATENCY_BUCKETS_MS) for name in histograms}


def _record(meter: Meter, metric: Metric) -> Record:
    about = {"name": metric.name, "unit": metric.unit, "description": metric.description}
    match metric.kind:
        case Kind.COUNTER:
            return _counting(meter, about)
        case Kind.UP_DOWN:
            return meter.create_up_down_counter(**about).add
        case Kind.GAUGE:
            return meter.create_gauge(**about).set
        case Kind.HISTOGRAM:
            bounds = LATENCY_BUCKETS_MS
            return meter.create_histogram(**about, explicit_bucket_boundaries_advisory=bounds).record


def _counting(meter: Meter, about: dict[str, str]) -> Record:
    """A counter that is summed up here and read when somebody asks: counting happens far more often than reading."""
    totals: dict[frozenset[tuple[str, str | bool | int]], float] = {}

    def add(value: float, attributes: dict[str, str | bool | int]) -> None:
        key = frozenset(attributes.items())
        totals[key] = totals.get(key, 0) + value

    def observe(_options: CallbackOptions) -> list[Observation]:
        return [Observation(total, dict(key)) for key, total in list(totals.items())]

    meter.create_observable_counter(**about, callbacks=[observe])
    return add


def _allowed(name: str, declared: frozenset[str], given: Mapping[str, Attribute]) -> dict[str, str | bool | int]:
    if not given.keys() <= declared:
        raise ValueError(f"{name} does not declare {', '.join(sorted(given.keys() - declared))}")
    return {key: value for key, value in given.items() if value is not None}


def _below(parent: Mapping[str, object] | None) -> Context | None:
    if not parent:
        return None
    # An envelope's trace_context comes from outside: whatever does not parse starts a trace of its own.
    carrier = {key: value for key, value in parent.items() if isinstance(value, str)}
    return _W3C.extract(carrier, context=Context())


def _otlp_metrics(endpoint: str | None) -> list[MetricReader]:
    if endpoint is None:
        return []
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415 - heavy

    exporter = OTLPMetricExporter(endpoint=f"{endpoint.rstrip('/')}/v1/metrics", timeout=EXPORT_TIMEOUT_S)
    return [PeriodicExportingMetricReader(exporter)]


def _otlp_spans(endpoint: str | None) -> list[SpanProcessor]:
    if endpoint is None:
        return []
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - heavy

    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_TIMEOUT_S)
    return [BatchSpanProcessor(exporter)]
