"""All that is judged together: the record of the services, as the lake holds it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from butlers.pipeline.transforms.books_belonging import judged_attempts, judged_receipts, judged_routing
from butlers.pipeline.transforms.books_deliveries import judged_deliveries
from butlers.pipeline.transforms.books_requests import judged_requests
from butlers.pipeline.windows import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The newest version of every row, from before the window to the end of the record."""

    requests: DataFrame
    routing: DataFrame
    deliveries: DataFrame
    attempts: DataFrame
    receipts: DataFrame

    def frames(self) -> tuple[DataFrame, ...]:
        return self.requests, self.routing, self.deliveries, self.attempts, self.receipts


def judgements(record: Record, *, window: Window, cutoff: datetime, silent: Collection[str]) -> DataFrame:
    """(key, date, verdicts) of everything that began in the window."""
    parts = [
        judged_requests(
            record.requests, record.routing, record.deliveries, window=window, cutoff=cutoff, silent=silent
        ),
        judged_routing(record.routing, record.requests, window=window, cutoff=cutoff),
        judged_deliveries(record.deliveries, record.attempts, record.receipts, window=window, cutoff=cutoff),
        judged_attempts(record.attempts, record.deliveries, window=window, cutoff=cutoff),
        judged_receipts(record.receipts, record.deliveries, window=window, cutoff=cutoff),
    ]
    return reduce(DataFrame.unionByName, parts)


def newest_moment(record: Record) -> DataFrame:
    """(moment): how far the record reaches; null when there is none."""
    moments = [
        record.requests.select(sf.greatest("received_at", "updated_at").alias("moment")),
        record.routing.select(sf.col("created_at").alias("moment")),
        record.deliveries.select(sf.greatest("created_at", "updated_at").alias("moment")),
        record.attempts.select(sf.greatest("started_at", "completed_at").alias("moment")),
        record.receipts.select(sf.col("received_at").alias("moment")),
    ]
    return reduce(DataFrame.unionByName, moments).agg(sf.max("moment").alias("moment"))
