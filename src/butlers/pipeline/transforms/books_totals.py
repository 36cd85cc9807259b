"""Output `pipeline.books`: per day and rule, how many were looked at, how many broke it, and how many are too young."""

from __future__ import annotations

from uuid import UUID

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from butlers.pipeline.transforms.books_rules import Severity, of_severity
from butlers.pipeline.transforms.books_verdicts import BROKEN, YOUNG, each_verdict


def books_totals(judgements: DataFrame, run_id: UUID) -> DataFrame:
    verdict = sf.col("verdict")
    notice = sf.col("rule").isin(*of_severity(Severity.NOTICE))
    counted = (
        each_verdict(judgements)
        .groupBy("date", "rule")
        .agg(
            sf.count_if(verdict != YOUNG).alias("checked"),
            sf.count_if(verdict == BROKEN).alias("broken"),
            sf.count_if(verdict == YOUNG).alias("young"),
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
