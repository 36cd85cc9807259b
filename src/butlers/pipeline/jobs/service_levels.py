"""service-levels: every SLI of a window, and how fast error budgets burnt up to its end.

    records -> indicators of [from, to)                    -> pipeline.service_levels
            -> good and bad events of 6 h, 1, 3 and 30 days up to `to`
                                                           -> pipeline.error_budget_burn
                                                           -> messenger.long_budget, read by Messenger

An older run does not take the place of a newer one in `long_budget`: a window of last week may be looked at again
without any channel being assessed by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.contracts.delivery_state import GIVEN_UP
from butlers.contracts.envelope import invalid
from butlers.pipeline.job import Job, JobContext, JobResult, Tense, Window
from butlers.pipeline.sinks.merge import Place, merge_into
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.tables import Table
from butlers.pipeline.tables.deliveries import (
    ACCEPT_TIMES,
    ADMISSION_OUTCOMES,
    ATTEMPTS,
    DEAD_LETTERS,
    DELIVERIES,
    ERROR_BUDGET_BURN,
    LONG_BUDGET,
    RECIPIENT_RULES,
    REQUESTS,
    ROUTES,
    SERVICE_LEVELS,
)
from butlers.pipeline.transforms import slis
from butlers.pipeline.transforms.expressions import SHARES, whole_minutes
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
    deliveries: DataFrame, attempts: DataFrame, rules: DataFrame, *, as_of: datetime, policy: BudgetPolicy
) -> DataFrame:
    events = _attempted(with_suppression(deliveries, rules), attempts).unionByName(_ended(deliveries, attempts))
    known = events.where(sf.col("moment") <= sf.lit(as_of))
    in_windows = known.select(
        "*", sf.explode(sf.array(*(sf.lit(length // _SECOND).cast("long") for length in LENGTHS))).alias("window_s")
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
    counted = attempts.where(sf.col("outcome").isin("rejected", "failed")).select(sf.col("delivery_id").alias("id"))
    silent = failed.join(counted, ["id"], how="left_anti")
    return silent.select(
        "channel", "identity_scope", sf.col("terminal_at").alias("moment"), sf.lit(False).alias("is_good")
    )


def _burn(policy: BudgetPolicy) -> Column:
    """As `butlers.reliability.error_budget.burn_rate`."""
    events = sf.col("good") + sf.col("bad")
    share = sf.col("bad") / events / sf.lit(1 - policy.objective)
    return sf.when(events >= policy.min_events, sf.round(share, 6))


_TICK = timedelta(microseconds=1)


def run(context: JobContext) -> JobResult:
    policy, window = budget_policy(context.arguments), context.window
    records = _records(context)
    deliveries, attempts = records.deliveries.cache(), records.attempts.cache()
    indicators = service_levels(records, window).cache()
    burn = error_budget_burn(deliveries, attempts, records.rules, as_of=window.end, policy=policy).cache()
    place: Place = {"window_start": window.start, "window_end": window.end}
    moment = Window(start=window.end, end=window.end + _TICK)
    try:
        written = merge_into(indicators, context.dsn, SERVICE_LEVELS, run_id=context.run_id, slices=[place])
        budgets = merge_into(burn, context.dsn, ERROR_BUDGET_BURN, run_id=context.run_id, window=moment)
        fed = _feed(context, burn)
        rows = burn.select("channel", "identity_scope", "window_s", "good", "bad", "burn_rate").collect()
        shown = [row.asDict() for row in sorted(rows)]
        return JobResult(
            rows_in=deliveries.count() + attempts.count(),
            rows_out=written + budgets + fed,
            details={"indicators": written, "fed": fed, "as_of": window.end.isoformat(), "burn": shown},
        )
    finally:
        for frame in (deliveries, attempts, indicators, burn):
            frame.unpersist()


def budget_policy(arguments: Any) -> BudgetPolicy:
    """Messenger's defaults, with another objective when one is said; what Messenger itself does goes by its own."""
    text = arguments.get("objective")
    if text is None:
        return BudgetPolicy()
    try:
        return BudgetPolicy(objective=float(text))
    except ValueError:
        raise invalid("objective", "must be a number between 0 and 1") from None


def _records(context: JobContext) -> Records:
    window, minutes = context.window, whole_minutes(context.window)

    def read(table: Table, within: Window | None = None) -> DataFrame:
        return read_table(context.spark, context.dsn, table, window=within)

    return Records(
        # All of them: an ending, a doubt or a replay may belong to a delivery of any age.
        deliveries=read(DELIVERIES),
        attempts=read(ATTEMPTS),
        rules=read(RECIPIENT_RULES),
        door=read(ADMISSION_OUTCOMES, minutes),
        letters=read(DEAD_LETTERS, window),
        requests=read(REQUESTS, window),
        routes=read(ROUTES, window),
        accept_times=read(ACCEPT_TIMES, minutes),
    )


def _feed(context: JobContext, burn: DataFrame) -> int:
    """Hand Messenger the counts, unless it has newer ones."""
    target, as_of = LONG_BUDGET, context.window.end
    known = read_table(context.spark, context.dsn, target, columns=("as_of",))
    if not known.where(sf.col("as_of") > sf.lit(as_of)).isEmpty():
        return 0
    return merge_into(long_budget(burn), context.dsn, target, run_id=context.run_id, newest="as_of")


JOB = Job(
    name="service-levels",
    about="every service level indicator of a window, and the error budgets up to its end; Messenger reads these",
    run=run,
    check=lambda _, arguments: budget_policy(arguments),
    tense=Tense.OVER,
    arguments={"objective": "share of attempts that should succeed, for the burn rates on record (0.99)"},
)
JOBS = (JOB,)
