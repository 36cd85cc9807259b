"""The hourly rollup of heartbeats that lie in Parquet files, without moving them (decision 0069).

    files      -- each task folds the rows of some --------> stretches, in a parcel for each bucket of endpoints
    parcels    -- moved to their bucket, put together -----> hours, and the names of troubled processes
    heartbeats of the troubled ones, one by one -----------> parts of hours, and then hours are summed up once more

Most often nobody is troubled, and the last line is left out.

The result is that of `hourly` for every way in which the rows lie; how fast it comes is not.

The tasks read the files by themselves, as columns. Spark reads columns too, but hands them to Python as rows that are
made into columns again: for every row that costs more than to read and to fold it. So what Spark gets is a list of
files for each task, and what it sees of most rows are their stretches. The files are those of Spark's own scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from string import punctuation
from typing import TYPE_CHECKING
from urllib.parse import quote

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from butlers.errors import InternalError
from butlers.pipeline.transforms.hourly import HEARTBEAT_COLUMNS, STATES, numbered, summed, within
from butlers.pipeline.transforms.hourly_joining import part_schema, put_together
from butlers.pipeline.transforms.hourly_steps import steps
from butlers.pipeline.transforms.hourly_stretches import MOST_ROWS, PROCESS, folded
from butlers.pipeline.transforms.parcels import gathered, packed, unpacked
from butlers.pipeline.windows import Window

if TYPE_CHECKING:
    import pyarrow

TASK_BYTES = 32 << 20  # of files: about half a million heartbeats
MOST_TASKS = 2_000  # beyond, they are larger: every task packs for every bucket, and parcels would become tiny
MOST_NAMED = 10  # endpoints: spark.sql.parquet.pushdown.inFilterThreshold; of more a scan minds the first and the last
BUCKET_BYTES = 128 << 20  # of files: about 60,000 stretches, or two million if all heartbeats are loose


@contextmanager
def hourly_of_files(heartbeats: DataFrame, window: Window) -> Iterator[DataFrame]:
    """`hourly` of a frame that is all rows of some Parquet files and nothing else: no filter, no other source."""
    parts = parts_of_hours(*parcels_of_files(heartbeats)).persist(StorageLevel.MEMORY_AND_DISK)  # looked at twice
    try:
        yield joined(parts, heartbeats, window)
    finally:
        parts.unpersist()


def joined(parts: DataFrame, heartbeats: DataFrame, window: Window) -> DataFrame:
    """Hours from their parts, and from the heartbeats of processes whose stretches do not fit together."""
    told = parts.where(~sf.col("troubled")).drop("troubled", "instance_id")
    troubled = parts.where("troubled").select(*PROCESS)
    if troubled.count() == 0:  # all parts are made in parallel, and kept
        return within(told, window)
    again = numbered(of_endpoints(heartbeats, troubled)).join(sf.broadcast(troubled), list(PROCESS), how="left_semi")
    return summed(told.unionByName(steps(again)), window)


def of_endpoints(heartbeats: DataFrame, troubled: DataFrame) -> DataFrame:
    """With a few names in the scan, Spark leaves out the files whose dictionaries have none of them."""
    names = {row[0] for row in troubled.select("endpoint_identity").distinct().limit(MOST_NAMED + 1).collect()}
    return heartbeats if len(names) > MOST_NAMED else heartbeats.where(sf.col("endpoint_identity").isin(names))


def parts_of_hours(parcels: DataFrame, buckets: int) -> DataFrame:
    """What stretches add to their hours, or that a process is troubled; all those of a bucket are in one task."""
    return parcels.repartitionById(buckets, "bucket").mapInArrow(_put_together, from_arrow_schema(part_schema()))


def parcels_of_files(heartbeats: DataFrame) -> tuple[DataFrame, int]:
    """The stretches of all files, and the number of their buckets. Spark moves parcels unopened: to make rows of them,
    which nobody looks at on the way, and columns again would cost as much as they took to make.
    """
    from pyarrow import fs  # noqa: PLC0415 - heavy, and not needed to name the jobs

    # Java leaves letters beyond ASCII as they are, which others do not take for an address.
    files = sorted(quote(file, safe=punctuation) for file in heartbeats.inputFiles())
    sizes = [system.get_file_info(path).size or 0 for system, path in map(fs.FileSystem.from_uri, files)]
    tasks, buckets = shared_out(files, sizes), 1 + sum(sizes) // BUCKET_BYTES
    numbers = heartbeats.sparkSession.range(0, len(tasks), 1, max(1, len(tasks)))
    return numbers.mapInArrow(partial(_fold_files, tasks, buckets), "bucket int, parcel binary"), buckets


def shared_out(files: Sequence[str], sizes: Sequence[int]) -> list[list[str]]:
    """Tasks of about the same size, from files in order."""
    tasks: dict[int, list[str]] = {}
    even = sum(sizes) / min(MOST_TASKS, max(1, -(-sum(sizes) // TASK_BYTES)))
    for file, size, end in zip(files, sizes, accumulate(sizes), strict=True):
        tasks.setdefault(int((end - size / 2) // max(1, even)), []).append(file)
    return [*tasks.values()]


def _fold_files(
    tasks: Sequence[Sequence[str]], buckets: int, batches: Iterator[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    """File by file: what lies in one is one stretch of time, and others may hold what came between two of them."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for stretches in gathered(map(folded, _row_groups(tasks[number]))):
                yield from packed(stretches, buckets)


def _put_together(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    yield from put_together(unpacked(batches)).to_batches()


def _row_groups(files: Sequence[str]) -> Iterator[pyarrow.Table]:
    import pyarrow  # noqa: PLC0415 - on executors only
    from pyarrow import fs, parquet  # noqa: PLC0415

    for uri in files:
        system, path = fs.FileSystem.from_uri(uri)
        try:
            with parquet.ParquetFile(
                path, filesystem=system, read_dictionary=[*PROCESS, "state"], page_checksum_verification=True
            ) as file:
                _must_have_all(file.schema_arrow.names, path)
                for group in range(file.num_row_groups):
                    rows = _numbered(file.read_row_group(group, columns=[*HEARTBEAT_COLUMNS], use_threads=False))
                    yield from (rows.slice(begin, MOST_ROWS) for begin in range(0, rows.num_rows, MOST_ROWS))
        except (OSError, pyarrow.ArrowException) as error:  # a page that is damaged; its footer was looked at before
            raise InternalError(
                f"{path}: the file cannot be read ({type(error).__name__}); restore it from a backup"
            ) from error


def _must_have_all(names: Sequence[str], path: str) -> None:
    if missing := [name for name in HEARTBEAT_COLUMNS if name not in names]:
        raise InternalError(f"{path}: the file has no {', '.join(missing)}; run the job with source=table")


def _numbered(rows: pyarrow.Table) -> pyarrow.Table:
    """With the state as a place in the list of states."""
    import pyarrow  # noqa: PLC0415 - on executors only
    from pyarrow import compute  # noqa: PLC0415

    states = rows.column("state").combine_chunks()
    places = compute.index_in(states.dictionary, pyarrow.array([*STATES.values()])).fill_null(-1).cast("int64")
    return rows.set_column(rows.schema.get_field_index("state"), "state", places.take(states.indices))
