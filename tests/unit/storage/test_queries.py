"""Named queries: what loads, and what is refused at load time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from butlers.errors import ConfigurationError
from butlers.storage.queries import Queries

FILE = """
-- Everything about deliveries.

-- name: claim_due
-- Takes due deliveries for one worker.
-- Skips rows that another worker is claiming.
update {schema}.deliveries
set claimed_by = $1  -- the worker
where payload = '{"a": 1}';

-- name: count_all
-- How many there are.
select count(*) from {schema}.deliveries
"""


def test_queries_are_found_by_attribute_and_by_name():
    queries = Queries.parse(FILE, source="deliveries.sql", schema="messenger")

    assert queries.count_all == '/* count_all */ select count(*) from "messenger".deliveries'
    assert queries["count_all"] == queries.count_all
    assert list(queries) == ["claim_due", "count_all"]
    assert len(queries) == 2


def test_only_the_schema_placeholder_is_replaced():
    claim_due = Queries.parse(FILE, source="deliveries.sql", schema='odd"name').claim_due

    assert claim_due.startswith('/* claim_due */ update "odd""name".deliveries')
    assert """'{"a": 1}'""" in claim_due
    assert "Skips rows" not in claim_due
    assert "-- the worker" in claim_due


def test_an_unknown_query_names_the_file():
    queries = Queries.parse(FILE, source="deliveries.sql", schema="messenger")

    with pytest.raises(AttributeError, match=r"deliveries\.sql has no query 'claim_dew'"):
        _ = queries.claim_dew
    with pytest.raises(KeyError):
        _ = queries["claim_dew"]


def test_a_file_is_read_from_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "package_with_queries"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "queries.sql").write_text("-- name: one\n-- One.\nselect 1")
    monkeypatch.syspath_prepend(tmp_path)

    try:
        assert Queries.load("package_with_queries").one == "/* one */ select 1"
    finally:
        sys.modules.pop("package_with_queries", None)


def test_a_modules_file_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "module_with_queries.py").touch()
    (tmp_path / "module_with_queries.sql").write_text("-- name: one\n-- One.\nselect 1")
    monkeypatch.syspath_prepend(tmp_path)

    assert Queries.load("module_with_queries").one == "/* one */ select 1"


def test_an_owner_that_is_not_there_is_refused():
    with pytest.raises(ConfigurationError, match="there is no such module"):
        Queries.load("module_that_is_not_there")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-- name: a\n-- A.\nselect 1\n-- name: a\n-- B.\nselect 2", "a: this name is used twice"),
        ("-- name: a\nselect 1", "a: the sentence is missing"),
        ("-- name: a\n--\nselect 1", "a: the sentence is missing"),
        ("-- name: a\n-- A.\n", "a: there is no SQL"),
        ("-- name: a\n-- A.\n\n-- not SQL\n-- name: b\n-- B.\nselect 1", "a: there is no SQL"),
        ("-- name: Not-A-Name\n-- A.\nselect 1", "Not-A-Name: this is not a name"),
        ("-- name:\n-- A.\nselect 1", "this is not a name"),
        ("select 1\n-- name: a\n-- A.\nselect 1", "there is SQL before the first name"),
        ("select 1", "there is SQL before the first name"),
        ("-- name: a\n-- A.\nselect * from {schema}.t", "a: the query needs a schema"),
    ],
)
def test_a_file_with_a_mistake_does_not_load(text: str, problem: str):
    with pytest.raises(ConfigurationError, match=problem):
        Queries.parse(text, source="queries.sql")
