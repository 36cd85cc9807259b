"""Replays and what they descend from.

replay_of    c -> b -> a          every replay leads up to the delivery it descends from: its root
             d -> a               {b, c, d} is the family of a
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

_ASCENT = """
WITH RECURSIVE ascent(id, ancestor) MAX RECURSION LEVEL 1000 AS (
    SELECT id, replay_of FROM {replays}
    UNION ALL
    SELECT ascent.id, parent.replay_of FROM ascent JOIN {replays} AS parent ON parent.id = ascent.ancestor
)
SELECT id, ancestor FROM ascent
"""


def ascent(deliveries: DataFrame) -> DataFrame:
    """(id, ancestor): every replay with each of its ancestors, the root among them."""
    replays = deliveries.where(sf.col("replay_of").isNotNull()).select("id", "replay_of")
    return deliveries.sparkSession.sql(_ASCENT, replays=replays)
