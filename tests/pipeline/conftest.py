"""One Spark session for all tests of the pipeline: a Java start costs seconds and a gigabyte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from butlers.pipeline.session import SessionSettings, spark_session
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import quiet_server

_HERE = Path(__file__).parent
SMALL = {"spark.sql.shuffle.partitions": "2"}
# For few rows, compiling takes a third of the processor's time. Heavy tests run as the product does.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


# Run at every change, within the time that all tests together may take; the other tests with Spark are heavy.
AT_EVERY_CHANGE = {
    "test_changes.py",
    "test_merge_sink.py",
    "test_postgres_source.py",
    "test_scenarios.py",
    "test_session.py",
}


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in (item for item in items if item.path.is_relative_to(_HERE)):
        if "spark" in getattr(item, "fixturenames", ()) and item.path.name not in AT_EVERY_CHANGE:
            item.add_marker(pytest.mark.heavy)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """Theirs alone: a transaction that anybody leaves open on a server holds up its stream of changes."""
    server = quiet_server()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    options = SMALL | (INTERPRETED if "not heavy" in pytestconfig.getoption("markexpr") else {})
    settings = SessionSettings(scratch=tmp_path_factory.mktemp("spark"), master="local[2]", options=options)
    with spark_session("butlers tests", settings) as session:
        yield session
