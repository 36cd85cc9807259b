"""Names in SQL text."""

from __future__ import annotations

import pytest

from butlers.storage.queries import fill_schema, quote_identifier


@pytest.mark.parametrize(
    ("name", "quoted"),
    [("shared", '"shared"'), ('a"b', '"a""b"'), ("select", '"select"'), ("x; drop table y", '"x; drop table y"')],
)
def test_a_name_is_quoted_whatever_it_holds(name: str, quoted: str):
    assert quote_identifier(name) == quoted


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 64, "ü" * 32])
def test_a_name_the_server_would_refuse_or_cut_off_is_refused(name: str):
    with pytest.raises(ValueError, match="identifier"):
        quote_identifier(name)


def test_the_longest_name_is_allowed():
    assert quote_identifier("x" * 63) == '"' + "x" * 63 + '"'


def test_every_placeholder_is_filled():
    assert fill_schema("{schema}.a, {schema}.b, '{}'", "s") == """"s".a, "s".b, '{}'"""
