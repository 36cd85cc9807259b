"""Plans as Parquet: `<folder>/message_id=<id>/`, replaced as a whole when a message is planned again."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame


def write_plan(plan: DataFrame, folder: Path) -> None:
    """All of it or nothing: Spark moves the files to their place when every task is done."""
    plan.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy("message_id").parquet(
        str(folder)
    )
