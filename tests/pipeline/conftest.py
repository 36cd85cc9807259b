"""One Spark session for all tests of the pipeline: a Java start costs seconds and a gigabyte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from butlers.pipeline.session import SessionSettings, spark_session

_HERE = Path(__file__).parent
SMALL = {"spark.sql.shuffle.partitions": "2"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = SessionSettings(scratch=tmp_path_factory.mktemp("spark"), master="local[2]", options=SMALL)
    with spark_session("butlers tests", settings) as session:
        yield session
