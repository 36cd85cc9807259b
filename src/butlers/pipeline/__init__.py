"""The data pipeline, on Spark: everything that reads the whole record.

    PostgreSQL --sources--> transforms (DataFrame -> DataFrame) --sinks--> PostgreSQL
         |                      ^
         +--stream--> lake -----+

`session.py` alone builds a session, `sources` and `sinks` alone read and write, `tables` is the contract with the
services' tables, and a job is a source, a transform and a sink over an explicit window; a transform that several jobs
or executors need has a file of its own in `transforms`. Jobs run in a process of their own (`butlers pipeline run JOB`)
and may be repeated: the result is the same.
"""
