"""How fast each channel spent its error budget over long stretches, all of which end at the same moment.

    good   an attempt that the provider accepted
    bad    an attempt that failed for a reason that is the provider's, or that left a doubt; a delivery that ended so
           without any attempt that says so
    none   the rest: see messenger/service_levels/__init__.py, whose rule this is

As online, a stretch is (end - length, end]: what began exactly at its start is not in it, what began at its end is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.contracts.delivery_state import GIVEN_UP
from butlers.pipeline.transforms.delivery_slis import with_suppression
from butlers.reliability.error_budget import BudgetPolicy

LENGTHS: Final = (timedelta(hours=6), timedelta(days=1), timedelta(days=3), timedelta(days=30))

_FAULTS = ("target_unavailable", "timeout", "internal_error")
_SECOND = timedelta(seconds=1)


def error_budget_burn(
    deliveries: DataFrame,
    attempts: DataFrame,
    rules: DataFrame,
    *,
    as_of: datetime,
    policy: BudgetPolicy,
    lengths: Sequence[timedelta] = LENGTHS,
) -> DataFrame:
    events = _attempted(with_suppression(deliveries, rules), attempts).unionByName(_ended(deliveries, attempts))
    known = events.where(sf.col("moment") <= sf.lit(as_of))
    in_windows = known.select(
        "*", sf.explode(sf.array(*(sf.lit(_seconds(length)).cast("long") for length in lengths))).alias("window_s")
    )
    started = sf.unix_micros("moment") > sf.unix_micros(sf.lit(as_of)) - sf.col("window_s") * sf.lit(1_000_000)
    counted = (
        in_windows.where(started)
        .groupBy("channel", "identity_scope", "window_s")
        .agg(sf.count_if("is_good").alias("good"), sf.count_if(~sf.col("is_good")).alias("bad"))
    )
    return counted.select(
        sf.lit(as_of).alias("as_of"),
        *("window_s", "channel", "identity_scope", "good", "bad"),
        sf.lit(policy.objective).alias("objective"),
        _burn(policy).alias("burn_rate"),
    )


def long_budget(burn: DataFrame) -> DataFrame:
    """What Messenger reads: the counts, because the objective is its own."""
    name = sf.concat_ws(".", sf.col("channel"), sf.col("identity_scope"))
    return burn.select(name.alias("name"), "window_s", "good", "bad", "as_of")


def _attempted(deliveries: DataFrame, attempts: DataFrame) -> DataFrame:
    completed = attempts.where(sf.col("completed_at").isNotNull()).drop("id").withColumnRenamed("delivery_id", "id")
    made = completed.join(deliveries, ["id"], how="inner")
    sent, retryable = sf.col("outcome") == "sent", sf.col("retryable")
    in_time = sf.col("not_after").isNull() | (sf.col("started_at") <= sf.col("not_after"))
    faulty = retryable | sf.col("error_class").isin(*_FAULTS)
    # A crash of ours before anything left says nothing about the provider.
    doubtful = sf.col("certainty") == "uncertain"
    speaks = sent | doubtful | ((sf.col("outcome") != "lost") & faulty)
    # A recipient who blocked us, which the provider said once and for all.
    not_blocked = (sf.col("outcome") != "rejected") | retryable | ~sf.col("is_suppressed")
    return made.where((sent | in_time) & speaks & not_blocked).select(
        "channel", "identity_scope", sf.col("started_at").alias("moment"), sent.alias("is_good")
    )


def _ended(deliveries: DataFrame, attempts: DataFrame) -> DataFrame:
    """Deliveries that failed without an attempt that was counted."""
    failed = deliveries.where(sf.col("status").isin(*GIVEN_UP) & sf.col("terminal_error_class").isin(*_FAULTS))
    told = attempts.where(sf.col("outcome").isin("rejected", "failed")).select(sf.col("delivery_id").alias("id"))
    silent = failed.join(told, ["id"], how="left_anti")
    return silent.select(
        "channel", "identity_scope", sf.col("terminal_at").alias("moment"), sf.lit(False).alias("is_good")
    )


def _burn(policy: BudgetPolicy) -> Column:
    """As `butlers.reliability.error_budget.burn_rate`."""
    events = sf.col("good") + sf.col("bad")
    share = sf.col("bad") / events / sf.lit(1 - policy.objective)
    return sf.when(events >= policy.min_events, sf.round(share, 6))


def _seconds(length: timedelta) -> int:
    return length // _SECOND
