"""What an earlier run over the same window left behind and the present one no longer finds.

Windows of the tables about routing may overlap (a day and its week), so nothing is deleted by time. A slice that is
gone stays with counts of zero, and an alert that no longer holds is `cleared`: who saw it fire sees that, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType, IntegerType, LongType

from butlers.pipeline.tables import Table


def completed(found: DataFrame, before: DataFrame, table: Table, gone: Mapping[str, Column]) -> DataFrame:
    """`found`, and what only `before` has, with the values of `gone`."""
    names = table.columns.fieldNames()
    missing = before.join(found.select(*table.key), on=list(table.key), how="left_anti").withColumns(dict(gone))
    return found.select(*names).unionByName(missing.select(*names))


def emptied(table: Table) -> dict[str, Column]:
    """Counts of zero, and rates that are not there."""
    zero = {field.name: sf.lit(0).cast(field.dataType) for field in table.columns if _counts(field.dataType)}
    none = {f.name: sf.lit(None).cast("double") for f in table.columns if isinstance(f.dataType, DoubleType)}
    return zero | none


def _counts(kind: object) -> bool:
    return isinstance(kind, LongType | IntegerType)
