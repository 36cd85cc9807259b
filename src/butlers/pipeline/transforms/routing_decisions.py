"""What the router decided, request by request, whatever operators made of it afterwards.

    message_inbox.routing_output     the decision that stands: the router's own unless a person rerouted the request
    routing_log, before the reroute  the router's own decision about a request that a person rerouted
    handed_to of the audit           the same, when the reroute came before the first line of the log

The outcome is that of the router's own decision: `total` when no part succeeded, `partial` when some did, `stopped`
when a person stopped it, `open` as long as it is under way. What is open and undecided says nothing and is left out.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.contracts.request_state import ENDED

CARRIED_OUT = ("success", "partial")
_DETAILS = "struct<was: string, handed_to: array<string>>"


def corrections(audit: DataFrame) -> DataFrame:
    """From `operator_audit_log`."""
    reroutes = audit.where((sf.col("action") == "manual_reroute") & sf.col("outcome").isin(*CARRIED_OUT)).select(
        "request_id",
        "performed_at",
        sf.struct("performed_at", "id").alias("place"),
        sf.get_json_object("payload", "$.target").alias("target"),
        sf.from_json("outcome_details", _DETAILS).alias("details"),
    )
    first = sf.min_by("details", "place")
    return (
        reroutes.groupBy("request_id")
        .agg(
            sf.min("performed_at").alias("corrected_at"),
            sf.max_by("target", "place").alias("right_target"),
            first.alias("details"),
        )
        .select(
            "request_id",
            "corrected_at",
            "right_target",
            sf.col("details.was").alias("state_before"),
            sf.array_sort(sf.array_distinct(sf.coalesce("details.handed_to", sf.array().cast("array<string>")))).alias(
                "handed_to"
            ),
        )
    )


PART = "struct<part: string, target: string, failed: boolean>"


def dispatches(log: DataFrame, corrections: DataFrame) -> DataFrame:
    """One row per request that somebody was asked to take."""
    own = _before_correction(log, corrections)
    parts = own.groupBy("request_id", sf.substring_index("segment_id", "~", 1).alias("part")).agg(
        sf.max_by(sf.struct("target_butler", "success", "router", "model_version", "prompt_version"), "place").alias(
            "last"
        ),
        sf.max("place").alias("place"),
        sf.count("*").alias("lines"),
        sf.countDistinct("target_butler").alias("targets"),
    )
    again = sf.col("lines") > 1
    return (
        parts.groupBy("request_id")
        .agg(
            sf.array_sort(
                sf.collect_list(sf.struct("part", sf.col("last.target_butler"), ~sf.col("last.success"))).cast(
                    f"array<{PART}>"
                )
            ).alias("parts"),
            sf.max_by("last", "place").alias("last"),
            sf.bool_or(again).alias("redecided"),
            sf.bool_and(~again | (sf.col("targets") == 1)).alias("same"),
        )
        .select(
            "request_id",
            "parts",
            sf.col("last.router").alias("router"),
            sf.col("last.model_version").alias("model_version"),
            sf.col("last.prompt_version").alias("prompt_version"),
            "redecided",
            (sf.col("redecided") & sf.col("same")).alias("redecided_same"),
        )
    )


def _before_correction(log: DataFrame, corrections: DataFrame) -> DataFrame:
    joined = log.join(corrections.select("request_id", "corrected_at"), on="request_id", how="left")
    return joined.where(sf.col("corrected_at").isNull() | (sf.col("created_at") <= sf.col("corrected_at"))).select(
        *log.columns, sf.struct("created_at", "id").alias("place")
    )


NONE = "none"  # router of a request that failed before anybody was chosen
UNKNOWN = "unknown"  # router of a decision of which only the targets are on record
STOPPING = ("cancel", "abort")
DECISION = (
    "struct<router: string, model_version: string, prompt_version: string,"
    " segments: array<struct<segment_id: string, butler: string, start: int, end: int>>>"
)
COLUMNS = (
    "request_id",
    "received_at",
    "source_channel",
    "text_sha",
    "router",
    "model_version",  # '' when there is none, as with the prompt's
    "prompt_version",
    "targets",  # names, sorted, each once
    "segments",  # how many
    "decomposition",  # butlers and spans as JSON; NULL when only the targets are known
    "right_target",  # what an operator said, if one did
    "outcome",  # ok | partial | total | stopped | open
    "parts",
    "redecided",
    "redecided_same",
)


def decisions(inbox: DataFrame, dispatches: DataFrame, corrections: DataFrame) -> DataFrame:
    """`inbox` are rows of `message_inbox` with `text_sha` in place of the text."""
    joined = (
        inbox.withColumn("decision", sf.from_json("routing_output", DECISION))
        .drop("routing_output")
        .join(dispatches.select("request_id", sf.struct(*dispatches.columns[1:]).alias("log")), "request_id", "left")
        .join(corrections.select("request_id", sf.struct(*corrections.columns[1:]).alias("said")), "request_id", "left")
    )
    described = joined.select(
        "request_id",
        "received_at",
        "source_channel",
        "text_sha",
        sf.coalesce(_router(), sf.lit(NONE)).alias("router"),
        sf.coalesce(_version("model_version"), sf.lit("")).alias("model_version"),
        sf.coalesce(_version("prompt_version"), sf.lit("")).alias("prompt_version"),
        _targets().alias("targets"),
        _segments().alias("segments"),
        sf.when(_is_own(), sf.to_json(sf.transform("decision.segments", _span))).alias("decomposition"),
        sf.col("said.right_target").alias("right_target"),
        _errored().alias("errored"),
        _is_over().alias("over"),
        _is_stopped().alias("stopped"),
        _parts().alias("parts"),
        sf.coalesce("log.redecided", sf.lit(False)).alias("redecided"),
        sf.coalesce("log.redecided_same", sf.lit(False)).alias("redecided_same"),
    )
    ended = described.withColumn("outcome", _outcome())
    return ended.where((sf.col("router") != NONE) | (sf.col("outcome") == "total")).select(*COLUMNS)


def _is_rerouted() -> Column:
    return sf.col("said").isNotNull()


def _is_own() -> Column:
    """The decision that stands is the router's."""
    return ~_is_rerouted() & sf.col("decision.segments").isNotNull()


def _is_logged() -> Column:
    return _is_rerouted() & sf.col("log").isNotNull()


def _is_handed() -> Column:
    return _is_rerouted() & sf.col("log").isNull() & (sf.size("said.handed_to") > 0)


def _router() -> Column:
    known = sf.when(_is_own(), sf.col("decision.router")).when(_is_logged(), sf.col("log.router"))
    return known.when(_is_handed(), sf.lit(UNKNOWN))


def _version(name: str) -> Column:
    # A reroute leaves the versions of the row as the router had written them.
    known = sf.when(_is_own(), sf.col(f"decision.{name}")).when(_is_logged(), sf.col(f"log.{name}"))
    return known.when(_is_handed(), sf.col(name))


def _targets() -> Column:
    names = sf.when(_is_own(), sf.col("decision.segments.butler")).when(_is_logged(), sf.col("log.parts.target"))
    return sf.array_sort(
        sf.array_distinct(sf.coalesce(names.when(_is_handed(), sf.col("said.handed_to")), _no_target()))
    )


def _no_target() -> Column:
    return sf.array().cast("array<string>")


def _segments() -> Column:
    sizes = sf.when(_is_own(), sf.size("decision.segments")).when(_is_logged(), sf.size("log.parts"))
    return sf.coalesce(sizes.when(_is_handed(), sf.size("said.handed_to")), sf.lit(0))


def _span(segment: Column) -> Column:
    return sf.struct(segment["butler"], segment["start"], segment["end"])


def _parts() -> Column:
    """Of the decision that is told: a part of an earlier one that was never taken up again is not its failure."""
    names = sf.transform("decision.segments", lambda segment: sf.substring_index(segment["segment_id"], "~", 1))
    current = sf.filter("log.parts", lambda part: sf.array_contains(names, part["part"]))
    none = sf.array().cast(f"array<{PART}>")
    return sf.coalesce(sf.when(_is_own(), current).when(_is_logged(), sf.col("log.parts")), none)


def _errored() -> Column:
    state = sf.when(_is_rerouted(), sf.col("said.state_before")).otherwise(sf.col("lifecycle_state"))
    return sf.coalesce(state == "errored", sf.lit(False))


def _is_over() -> Column:
    return _is_rerouted() | sf.col("lifecycle_state").isin(*ENDED)


def _is_stopped() -> Column:
    action = sf.get_json_object("override", "$.action")
    return ~_is_rerouted() & sf.coalesce(action.isin(*STOPPING), sf.lit(False))


def _outcome() -> Column:
    bad = sf.size(sf.filter("parts", lambda part: part["failed"]))
    good = sf.size("parts") - bad
    return (
        sf.when(~sf.col("over"), "open")
        .when(sf.col("stopped"), "stopped")
        .when((good > 0) & ((bad > 0) | sf.col("errored")), "partial")
        .when((bad > 0) | sf.col("errored"), "total")
        .otherwise("ok")
    )
