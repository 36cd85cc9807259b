"""How many rows went past, counted on the way instead of by another scan."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sf
from pyspark.sql.column import Column


class Counted:
    """Counts what a plan reads while it is carried out."""

    def __init__(self, name: str) -> None:
        self._observation = Observation(name)

    def on(self, frame: DataFrame, counted: Column | None = None) -> DataFrame:
        """The same frame; `counted` is an aggregate over it, its rows when left out."""
        rows = sf.count(sf.lit(1)) if counted is None else counted
        return frame.observe(self._observation, rows.alias("rows"))

    @property
    def rows(self) -> int:
        """After an action. Of a plan that Spark found empty it left the counting out, too, and has no answer."""
        try:
            return int(self._observation.get["rows"] or 0)
        except (Py4JJavaError, PySparkException, KeyError):
            return 0
