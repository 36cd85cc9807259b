"""The event lake: the record of the services as Parquet files by day, filled by a stream that misses nothing.

    PostgreSQL --sources/changes--> stream --append--> log <--compact, retain-- jobs
                                                        |
                                                     reading

`events.py` says what is kept and what is not, `log.py` which files count, `files.py` how they come and go.
"""
