"""service-levels: every SLI of a window, and how fast error budgets burnt up to its end.

    records -> indicators of [from, to)                    -> pipeline.service_levels
            -> good and bad events of 6 h, 1, 3 and 30 days up to `to`
                                                           -> pipeline.error_budget_burn
                                                           -> messenger.long_budget, read by Messenger

An older run does not take the place of a newer one in `long_budget`: a window of last week may be looked at again
without any channel being assessed by it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from butlers.contracts.envelope import invalid
from butlers.pipeline.job import Job, JobContext, JobResult, Tense, Window
from butlers.pipeline.sinks.merge import merge_into
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.tables import Table
from butlers.pipeline.tables.deliveries import (
    ADMISSION_OUTCOMES,
    ATTEMPTS,
    DEAD_LETTERS,
    DELIVERIES,
    RECIPIENT_RULES,
)
from butlers.pipeline.tables.service_levels import (
    ACCEPT_TIMES,
    ERROR_BUDGET_BURN,
    LONG_BUDGET,
    REQUESTS,
    ROUTES,
    SERVICE_LEVELS,
)
from butlers.pipeline.transforms.expressions import whole_minutes
from butlers.pipeline.transforms.service_levels import Records, error_budget_burn, long_budget, service_levels
from butlers.reliability.error_budget import BudgetPolicy

_TICK = timedelta(microseconds=1)


def run(context: JobContext) -> JobResult:
    policy = budget_policy(context.arguments)
    records = _records(context)
    read = (records.deliveries.cache(), records.attempts.cache())
    indicators, burn = service_levels(records, context.window).cache(), _burn(context, records, policy).cache()
    try:
        written = _write_indicators(context, indicators)
        budgets = _write_burn(context, burn)
        fed = _feed(context, burn)
        return JobResult(
            rows_in=sum(frame.count() for frame in read),
            rows_out=written + budgets + fed,
            details={
                "indicators": written,
                "fed": fed,
                "as_of": context.window.end.isoformat(),
                "burn": _shown(burn),
            },
        )
    finally:
        for frame in (*read, indicators, burn):
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
    messenger, switchboard = context.schemas.messenger, context.schemas.switchboard

    def read(table: Table, within: Window | None = None) -> DataFrame:
        return read_table(context.spark, context.dsn, table, window=within)

    return Records(
        # All of them: an ending, a doubt or a replay may belong to a delivery of any age.
        deliveries=read(DELIVERIES.within(messenger)),
        attempts=read(ATTEMPTS.within(messenger)),
        rules=read(RECIPIENT_RULES.within(messenger)),
        door=read(ADMISSION_OUTCOMES.within(messenger), minutes),
        letters=read(DEAD_LETTERS.within(messenger), window),
        requests=read(REQUESTS.within(switchboard), window),
        routes=read(ROUTES.within(switchboard), window),
        accept_times=read(ACCEPT_TIMES.within(switchboard), minutes),
    )


def _write_indicators(context: JobContext, indicators: DataFrame) -> int:
    window = context.window
    return merge_into(
        indicators,
        context.dsn,
        SERVICE_LEVELS.within(context.schemas.pipeline),
        run_id=context.run_id,
        slices=[{"window_start": window.start, "window_end": window.end}],
    )


def _burn(context: JobContext, records: Records, policy: BudgetPolicy) -> DataFrame:
    return error_budget_burn(
        records.deliveries, records.attempts, records.rules, as_of=context.window.end, policy=policy
    )


def _write_burn(context: JobContext, burn: DataFrame) -> int:
    target, as_of = ERROR_BUDGET_BURN.within(context.schemas.pipeline), context.window.end
    moment = Window(start=as_of, end=as_of + _TICK)
    return merge_into(burn, context.dsn, target, run_id=context.run_id, window=moment)


def _feed(context: JobContext, burn: DataFrame) -> int:
    """Hand Messenger the counts, unless it has newer ones."""
    target, as_of = LONG_BUDGET.within(context.schemas.messenger), context.window.end
    known = read_table(context.spark, context.dsn, target, columns=("as_of",))
    if not known.where(sf.col("as_of") > sf.lit(as_of)).isEmpty():
        return 0
    return merge_into(long_budget(burn), context.dsn, target, run_id=context.run_id, newest="as_of")


def _shown(burn: DataFrame) -> list[dict[str, Any]]:
    rows = burn.select("channel", "identity_scope", "window_s", "good", "bad", "burn_rate").collect()
    return [row.asDict() for row in sorted(rows)]


JOB = Job(
    name="service-levels",
    about="every service level indicator of a window, and the error budgets up to its end; Messenger reads these",
    run=run,
    check=lambda _, arguments: budget_policy(arguments),
    tense=Tense.OVER,
    arguments={"objective": "share of attempts that should succeed, for the burn rates on record (0.99)"},
)
