"""Stretches in parcels: all those of some endpoints, as Arrow writes a table down. Pure, without Spark."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from butlers.pipeline.transforms.hourly_stretches import Ints, coded, stretch_schema

ENDPOINT = ("connector_type", "endpoint_identity")


def packed(stretches: pa.Table, buckets: int) -> pa.RecordBatch:
    """A parcel for each bucket that has something; an endpoint is always in the same one."""
    bucket = _buckets(stretches, buckets)
    place = np.argsort(bucket, kind="stable")
    begins = np.flatnonzero(np.diff(bucket[place], prepend=-1))
    ends = np.append(begins[1:], len(place))
    ordered = stretches.take(pa.array(place)).combine_chunks()
    parcels = [_written(ordered.slice(begin, end - begin)) for begin, end in zip(begins, ends, strict=True)]
    numbers = pa.array(bucket[place[begins]], pa.int32())
    return pa.record_batch([numbers, pa.array(parcels, pa.binary())], names=["bucket", "parcel"])


def unpacked(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """All stretches of some parcels."""
    parcels = (parcel for batch in batches for parcel in batch.column("parcel"))
    tables = [pa.ipc.open_stream(parcel.as_buffer()).read_all() for parcel in parcels]
    return pa.concat_tables([stretch_schema().empty_table(), *tables]).combine_chunks()


def _written(stretches: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, stretches.schema) as stream:
        stream.write_table(stretches)
    return bytes(sink.getvalue())


def _buckets(stretches: pa.Table, buckets: int) -> Ints:
    found = np.zeros(stretches.num_rows, np.int64)
    for name in ENDPOINT:
        numbers, texts = coded(stretches.column(name))
        found = found * 31 + np.array([zlib.crc32(text.encode()) for text in texts.to_pylist()], np.int64)[numbers]
    return found % buckets
