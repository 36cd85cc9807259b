"""Stretches in parcels: all those of some endpoints, as Arrow writes columns down. Pure, without Spark."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from butlers.pipeline.transforms.hourly_stretches import ENDPOINT, Ints, coded, stretch_schema

MOST_PACKED = 100_000  # stretches at once: packing holds them several times


def packed(stretches: pa.Table, buckets: int) -> Iterator[pa.RecordBatch]:
    """Parcels for the buckets that have something; an endpoint is always in the same one."""
    for begin in range(0, stretches.num_rows, MOST_PACKED):
        yield _packed(stretches.slice(begin, MOST_PACKED), buckets)


def _packed(stretches: pa.Table, buckets: int) -> pa.RecordBatch:
    bucket = _buckets(stretches, buckets)
    place = np.argsort(bucket, kind="stable")
    begins = np.flatnonzero(np.diff(bucket[place], prepend=-1))
    [ordered] = stretches.take(pa.array(place)).combine_chunks().to_batches()
    lengths = np.diff(begins, append=len(place))
    # Without the schema, which is longer than most parcels, and the same for all.
    parcels = [bytes(ordered.slice(*where).serialize()) for where in zip(begins, lengths, strict=True)]
    numbers = pa.array(bucket[place[begins]], pa.int32())
    return pa.record_batch([numbers, pa.array(parcels, pa.binary())], names=["bucket", "parcel"])


def gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Small tables as larger ones, so that parcels are worth their wrapping; handed on as soon as there are enough."""
    held = stretch_schema().empty_table()
    for table in tables:
        held = pa.concat_tables([held, table])
        if held.num_rows >= MOST_PACKED:
            yield held
            held = held.slice(0, 0)
    yield held


def unpacked(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """All stretches of some parcels."""
    schema = stretch_schema()
    parcels = (parcel for batch in batches for parcel in batch.column("parcel"))
    found = [pa.ipc.read_record_batch(parcel.as_buffer(), schema) for parcel in parcels]
    return pa.Table.from_batches(found, schema).combine_chunks()


def _buckets(stretches: pa.Table, buckets: int) -> Ints:
    found = np.zeros(stretches.num_rows, np.int64)
    for name in ENDPOINT:
        numbers, texts = coded(stretches.column(name))
        found = found * 31 + np.array([zlib.crc32(text.encode()) for text in texts.to_pylist()], np.int64)[numbers]
    return found % buckets
