"""The lake against the tables, day by day: every row that stood in a table before the cutoff is in the lake."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from butlers.pipeline.transforms.books_verdicts import Check, judged


def judged_counts(event: str, in_table: DataFrame, in_lake: DataFrame) -> DataFrame:
    """Both are (id, born); `in_lake` has `vanished`, too: the table may well have removed it. One subject per day."""
    table = in_table.select("id", sf.to_date("born").alias("date"), sf.expr("true").alias("there"))
    lake = in_lake.select("id", sf.to_date("born").alias("date"), sf.expr("true").alias("here"), "vanished")
    both = table.join(lake, on=["id", "date"], how="full_outer")
    missing, surplus = sf.col("here").isNull(), sf.col("there").isNull() & ~sf.col("vanished")
    days = both.groupBy("date").agg(
        sf.count_if(missing).alias("missing"),
        sf.min(sf.when(missing, sf.col("id"))).alias("first_missing"),
        sf.count_if(surplus).alias("surplus"),
        sf.min(sf.when(surplus, sf.col("id"))).alias("first_surplus"),
    )
    named = days.withColumns({"key": sf.concat_ws(" ", sf.lit(event), sf.col("date").cast("string"))})
    return judged(
        named, [_check("lake-misses-rows", "missing"), _check("lake-holds-more", "surplus")], key="key", born="date"
    )


def rows_of(frame: DataFrame, *, key: str, born: str, vanished: str = "false") -> DataFrame:
    """What is compared of a table or an event; `vanished` is a condition in SQL."""
    return frame.select(sf.col(key).alias("id"), sf.col(born).alias("born"), sf.expr(vanished).alias("vanished"))


def _check(rule: str, name: str) -> Check:
    detail = sf.concat_ws(" ", sf.col(name).cast("string"), sf.lit("rows, first"), sf.col(f"first_{name}"))
    return Check(rule=rule, broken=sf.col(name) > 0, detail=detail)
