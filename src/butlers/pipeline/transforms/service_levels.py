"""Every service level indicator of a window, a row each."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from butlers.pipeline.transforms import delivery_slis, exception_slis, request_slis
from butlers.pipeline.transforms.percentiles import SHARES
from butlers.pipeline.transforms.sli_rows import together
from butlers.pipeline.windows import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What the services wrote down. Deliveries are all there are: a replay may descend from any of them."""

    deliveries: DataFrame
    attempts: DataFrame
    rules: DataFrame  # about recipients
    door: DataFrame  # how requests fared there, by the minute
    letters: DataFrame
    requests: DataFrame
    routes: DataFrame
    accept_times: DataFrame


def service_levels(records: Records, window: Window) -> DataFrame:
    indicators = together(
        [
            delivery_slis.delivery_success(records.deliveries, records.rules, window),
            delivery_slis.delivery_latency(records.deliveries, window),
            delivery_slis.duplicates(records.deliveries, records.attempts, window),
            delivery_slis.replay_success(records.deliveries, window),
            exception_slis.admission_rejection(records.door, window),
            exception_slis.dead_letters(records.letters, window),
            exception_slis.uncertain_settlement(records.deliveries, records.attempts, window),
            request_slis.accept_latency(records.accept_times, window),
            request_slis.completion_latency(records.requests, window),
            request_slis.interactive_latency(records.requests, window),
            request_slis.route_success(records.routes, window),
        ]
    )
    return indicators.select(
        sf.lit(window.start).alias("window_start"),
        sf.lit(window.end).alias("window_end"),
        *("sli", "dimensions", "events", "part", "rate", *SHARES, "counts"),
    )
