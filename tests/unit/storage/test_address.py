"""Addresses of databases, and that no password gets out."""

from __future__ import annotations

import pytest

from butlers.errors import ConfigurationError
from butlers.storage.address import describe_address, with_database


@pytest.mark.parametrize(
    ("dsn", "description"),
    [
        ("postgresql://me:secret@db.example:6543/butlers", "db.example:6543/butlers"),
        ("postgres://me:sec%40ret@db.example/butlers", "db.example/butlers"),
        ("postgresql://me:sec@ret@db.example/butlers", "db.example/butlers"),
        ("postgresql://postgres@/butlers?host=%2Fdata%2Fpostgres&port=5432", "/data/postgres/butlers"),
        ("postgresql://me:secret@one:5432,two:5433/butlers", "one:5432,two:5433/butlers"),
        ("postgresql://[::1]:5433/butlers", "[::1]:5433/butlers"),
    ],
)
def test_a_description_has_no_password(dsn: str, description: str):
    assert describe_address(dsn) == description


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:sec/ret@db.example/butlers",
        "postgresql://me:12/3456@db.example/butlers",
        "postgresql://me:sec#ret@db.example/butlers",
        "postgresql://me:12?34@db.example/butlers",
        "postgresql://me:secret@db.example:port/butlers",
        "postgresql://me:secret/butlers",
        "mysql://me:secret@db.example/butlers",
        "host=db.example password=secret",
        "postgresql://[broken/butlers",
        "",
    ],
)
def test_an_unreadable_address_is_refused_without_showing_any_of_it(dsn: str):
    with pytest.raises(ConfigurationError, match="the address cannot be read") as refused:
        describe_address(dsn)

    for part in ("secret", "sec", "ret", "12", "3456"):
        assert part not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("dsn", "other"),
    [
        (
            "postgresql://me:s%2Fx@db:6543/butlers?sslmode=require",
            "postgresql://me:s%2Fx@db:6543/o%2Fther?sslmode=require",
        ),
        ("postgresql://postgres@/butlers?host=%2Fdata", "postgresql://postgres@/o%2Fther?host=%2Fdata"),
        ("postgresql:///butlers?host=%2Fdata", "postgresql:///o%2Fther?host=%2Fdata"),
        ("postgresql://db", "postgresql://db/o%2Fther"),
    ],
)
def test_another_database_on_the_same_server(dsn: str, other: str):
    assert with_database(dsn, "o/ther") == other
