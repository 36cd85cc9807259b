"""All that is checked together: the record of the services, as the lake holds it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from uuid import UUID

from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as sf

from butlers.pipeline.job import Window
from butlers.pipeline.transforms.reconciliation_deliveries import (
    check_attempts,
    check_deliveries,
    check_receipts,
    check_routing,
)
from butlers.pipeline.transforms.reconciliation_requests import check_requests
from butlers.pipeline.transforms.reconciliation_rules import BROKEN, YOUNG, Severity, each_result, of_severity


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


def results(record: Record, *, window: Window, cutoff: datetime, silent: Collection[str]) -> DataFrame:
    """(key, date, decisions) of everything that began in the window."""
    parts = [
        check_requests(record.requests, record.routing, record.deliveries, window=window, cutoff=cutoff, silent=silent),
        check_routing(record.routing, record.requests, window=window, cutoff=cutoff),
        check_deliveries(record.deliveries, record.attempts, record.receipts, window=window, cutoff=cutoff),
        check_attempts(record.attempts, record.deliveries, window=window, cutoff=cutoff),
        check_receipts(record.receipts, record.deliveries, window=window, cutoff=cutoff),
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


SAMPLES = 5


def reconciliation_findings(results: DataFrame, run_id: UUID) -> DataFrame:
    breaches = each_result(results).filter(sf.col("result") == BROKEN).dropDuplicates(["date", "rule", "key"])
    notice = sf.col("rule").isin(*of_severity(Severity.NOTICE))
    severity = sf.when(notice, sf.lit(Severity.NOTICE.value)).otherwise(sf.lit(Severity.ERROR.value))
    return breaches.select(
        "date",
        "rule",
        "key",
        severity.alias("severity"),
        sf.coalesce("detail", sf.lit("")).alias("detail"),
        sf.lit(str(run_id)).alias("run_id"),
    )


def samples(findings: DataFrame) -> DataFrame:
    """(rule, keys): the first few of each rule."""
    place = sf.row_number().over(Over.partitionBy("rule").orderBy("date", "key"))
    few = findings.withColumn("place", place).filter(sf.col("place") <= SAMPLES)
    return few.groupBy("rule").agg(sf.array_sort(sf.collect_list("key")).alias("keys"))


def reconciliation_totals(results: DataFrame, run_id: UUID) -> DataFrame:
    result = sf.col("result")
    notice = sf.col("rule").isin(*of_severity(Severity.NOTICE))
    counted = (
        each_result(results)
        .groupBy("date", "rule")
        .agg(
            sf.count_if(result != YOUNG).alias("checked"),
            sf.count_if(result == BROKEN).alias("broken"),
            sf.count_if(result == YOUNG).alias("young"),
        )
    )
    return counted.select(
        "date",
        "rule",
        sf.when(notice, sf.lit(Severity.NOTICE.value)).otherwise(sf.lit(Severity.ERROR.value)).alias("severity"),
        "checked",
        "broken",
        "young",
        sf.lit(str(run_id)).alias("run_id"),
    )
