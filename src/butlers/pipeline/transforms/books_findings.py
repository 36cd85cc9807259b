"""Output `pipeline.books_findings`: every breach of a rule, with the ids to look it up by."""

from __future__ import annotations

from uuid import UUID

from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as sf

from butlers.pipeline.transforms.books_rules import Severity, of_severity
from butlers.pipeline.transforms.books_verdicts import BROKEN, each_verdict

SAMPLES = 5


def books_findings(judgements: DataFrame, run_id: UUID) -> DataFrame:
    breaches = each_verdict(judgements).filter(sf.col("verdict") == BROKEN).dropDuplicates(["date", "rule", "key"])
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
