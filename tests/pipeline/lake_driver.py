"""A process that fills and compacts a lake until it is killed or told to end: `python -m tests.pipeline.lake_driver`.

It starts Spark, says so, and waits for a line: starting takes seconds, and the test wants to kill it at work.
"""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

from pyspark.sql import SparkSession

from butlers.pipeline.job import JobContext
from butlers.pipeline.jobs.lake import compact, stream
from butlers.pipeline.session import SessionSettings, spark_session
from tests.pipeline.lake_system import MARCH

# A process that lives for seconds does not get back what a thorough compiler costs it.
_LEAN = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def main(dsn: str, lake: str, scratch: str) -> None:
    settings = SessionSettings(scratch=Path(scratch), master="local[2]", memory="512m", options=_LEAN)
    with spark_session("lake driver", settings) as spark:
        print("ready", flush=True)
        sys.stdin.readline()
        stop = Event()
        compactor = Thread(target=_compact, args=(spark, dsn, Path(lake), stop), daemon=True)
        compactor.start()
        arguments = {"event": "heartbeats", "trigger": "continuous", "every": "100ms"}
        result = stream(_context(spark, dsn, Path(lake), arguments))
        stop.set()
        compactor.join()
    print("ended", result.rows_out, flush=True)


def _compact(spark: SparkSession, dsn: str, lake: Path, stop: Event) -> None:
    while not stop.wait(1.0):
        compact(_context(spark, dsn, lake, {"event": "heartbeats", "grace": "0s"}))


def _context(spark: SparkSession, dsn: str, lake: Path, arguments: dict[str, str]) -> JobContext:
    return JobContext(spark=spark, dsn=dsn, lake=lake, run_id=uuid4(), window=MARCH, arguments=arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
