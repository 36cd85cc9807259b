"""Every service level indicator of a window, a row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.contracts.delivery_state import GIVEN_UP
from butlers.pipeline.job import Window
from butlers.pipeline.transforms import slis
from butlers.pipeline.transforms.percentiles import SHARES
from butlers.pipeline.transforms.slis import together, with_suppression
from butlers.reliability.error_budget import BudgetPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What the services wrote down. Deliveries are all there are: a replay may descend from any of them."""

    deliveries: DataFrame
    attempts: DataFrame
    rules: DataFrame  # about recipients
    door: DataFrame  # how requests fared there, by the minute
    letters: DataFrame
    requests: DataFrame
    routes: DataFrame
    accept_times: DataFrame


def service_levels(records: Records, window: Window) -> DataFrame:
    indicators = together(
        [
            slis.delivery_success(records.deliveries, records.rules, window),
            slis.delivery_latency(records.deliveries, window),
            slis.duplicates(records.deliveries, records.attempts, window),
            slis.replay_success(records.deliveries, window),
            slis.admission_rejection(records.door, window),
            slis.dead_letters(records.letters, window),
            slis.uncertain_settlement(records.deliveries, records.attempts, window),
            slis.accept_latency(records.accept_times, window),
            slis.completion_latency(records.requests, window),
            slis.interactive_latency(records.requests, window),
            slis.route_success(records.routes, window),
        ]
    )
    return indicators.select(
        sf.lit(window.start).alias("window_start"),
        sf.lit(window.end).alias("window_end"),
        *("sli", "dimensions", "events", "part", "rate", *SHARES, "counts"),
    )


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
