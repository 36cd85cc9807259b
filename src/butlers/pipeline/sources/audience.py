"""An audience: who is to get a message. CSV with a header, JSON lines or Parquet, one file or a folder of one kind.

The column `recipient_id` is read, and no other. The CSV files of a folder must have it in the same place, because Spark
takes the columns of all of them from one header. An audience is read and checked as a whole before anything is decided:
a file that cannot be read, an empty or impossible id and a recipient named twice end the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegralType, StringType

from butlers.contracts.envelope import MAX_IDENTITY, invalid
from butlers.errors import ValidationError

ID = "recipient_id"
_FORMATS: Mapping[str, str] = {
    ".csv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
}
_IN_FILE = re.compile(r"file:/[^\s,'\"]+")
_OTHER_HEADER = "CSV header does not conform to the schema"


def read_audience(spark: SparkSession, place: str) -> DataFrame:
    """The recipients' ids, not checked yet."""
    kind = _format(place)
    with _translated(place):
        reader = spark.read.option("mode", "FAILFAST")
        if kind == "json":
            return reader.schema(f"{ID} string").json(place)
        # enforceSchema=false: every file's own header is held against the one that the columns come from.
        headed = reader.option("header", "true").option("enforceSchema", "false")
        frame = headed.csv(place) if kind == "csv" else reader.parquet(place)
    return _only_ids(frame, place)


def count_audience(audience: DataFrame, place: str) -> int:
    """How many they are; raises when one of them cannot be written to or is there twice."""
    unusable = (
        sf.col(ID).isNull() | (sf.trim(ID) == "") | (sf.length(ID) > MAX_IDENTITY) | sf.contains(ID, sf.lit("\0"))
    )
    each = audience.groupBy(ID).agg(sf.count("*").alias("times"))
    summary = each.agg(
        sf.coalesce(sf.sum("times"), sf.lit(0)).alias("rows"),
        sf.coalesce(sf.sum(sf.when(unusable, sf.col("times"))), sf.lit(0)).alias("unusable"),
        sf.count(sf.when(sf.col("times") > 1, 1)).alias("repeated"),
        sf.min(sf.when(sf.col("times") > 1, sf.col(ID))).alias("example"),
    )
    with _translated(place):
        [found] = summary.collect()
    if found["unusable"]:
        raise invalid("audience", f"{place}: {ID} is missing, empty or too long in {found['unusable']} rows")
    if found["repeated"]:
        raise invalid(
            "audience", f"{place}: {found['repeated']} recipients are named more than once, {found['example']} for one"
        )
    if not found["rows"]:
        raise invalid("audience", f"{place}: names nobody")
    return int(found["rows"])


def _only_ids(frame: DataFrame, place: str) -> DataFrame:
    if ID not in frame.columns:
        raise invalid("audience", f"{place}: there is no column {ID}")
    kind = frame.schema[ID].dataType
    if not isinstance(kind, StringType | IntegralType):
        raise invalid("audience", f"{place}: the column {ID} is {kind.simpleString()}, not text")
    return frame.select(sf.col(ID).cast("string").alias(ID))


def _format(place: str) -> str:
    if "://" in place:  # a store that only Spark can look into
        return _FORMATS.get(Path(place).suffix, "parquet")
    path = Path(place)
    if not path.exists():
        raise invalid("audience", f"{place}: there is no such file or folder")
    kinds = {_FORMATS.get(file.suffix, file.name) for file in _files(path)}
    if len(kinds) != 1 or not kinds <= set(_FORMATS.values()):
        raise invalid("audience", f"{place}: must be .csv, .jsonl or .parquet, or a folder of one of these")
    return kinds.pop()


def _files(path: Path) -> Iterator[Path]:
    """What Spark would read."""
    if path.is_file():
        yield path
        return
    for file in path.rglob("*"):
        if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts):
            yield file


@contextmanager
def _translated(place: str) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise _unreadable(place, str(error)) from error


def _unreadable(place: str, said: str) -> ValidationError:
    named = _IN_FILE.search(said)
    file = f" ({Path(named[0]).name.rstrip('.')})" if named else ""
    if _OTHER_HEADER in said:
        return invalid("audience", f"{place}: {ID} is not in the same place in the header of every file{file}")
    return invalid("audience", f"{place}: a file cannot be read as what its name says{file}")
