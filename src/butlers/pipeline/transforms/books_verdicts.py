"""A verdict per subject and rule, all rules about a subject in one pass.

    subject --applies?--> no: nothing is said
                  |-----> it changed after the cutoff: young, judged another time
                  `-----> broken or kept

Tables reach the lake one after the other and some rows are still on their way, so only what has stood still since the
cutoff is judged: what is young today is judged tomorrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.pipeline.windows import Window

KEPT, BROKEN, YOUNG = "kept", "broken", "young"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule, in terms of the columns of its subject."""

    rule: str
    broken: Column
    detail: Column  # ids and names of states, nothing else
    applies: Column | None = None  # None: to every subject
    settled: Column | None = None  # None: always, for a rule that time cannot heal

    def verdict(self) -> Column:
        applies, settled = self.applies, self.settled
        breach = so(self.broken)
        word = sf.when(breach, sf.lit(BROKEN)).otherwise(sf.lit(KEPT))
        if settled is not None:
            word = sf.when(so(settled), word).otherwise(sf.lit(YOUNG))
        said = sf.struct(
            sf.lit(self.rule).alias("rule"), word.alias("verdict"), sf.when(breach, self.detail).alias("detail")
        )
        return said if applies is None else sf.when(so(applies), said)


def judged(subjects: DataFrame, checks: Sequence[Check], *, key: str, born: str) -> DataFrame:
    """(key, date, verdicts) of each subject."""
    return subjects.select(
        sf.col(key).alias("key"),
        sf.to_date(born).alias("date"),
        sf.array_compact(sf.array(*(check.verdict() for check in checks))).alias("verdicts"),
    )


def born_within(frame: DataFrame, column: str, window: Window) -> DataFrame:
    return frame.filter((sf.col(column) >= sf.lit(window.start)) & (sf.col(column) < sf.lit(window.end)))


def each_verdict(judgements: DataFrame) -> DataFrame:
    """(key, date, rule, verdict, detail): one row per subject and rule."""
    return judgements.select("key", "date", sf.explode("verdicts").alias("said")).select("key", "date", "said.*")


def so(condition: Column) -> Column:
    """Whether it is known to be so: null is a no."""
    return sf.coalesce(condition, sf.expr("false"))


def ids(values: Column) -> Column:
    """A few ids of a list as one text."""
    return sf.array_join(sf.slice(sf.array_sort(values), 1, 5), " ")
