"""`docs/scenarios.md` says what the tests prove, and nothing else."""

from __future__ import annotations

import ast

import pytest

from tests.traceability import (
    PAGE,
    SPECIFICATION,
    Scenario,
    main,
    marked_tests,
    read_carriers,
    read_specification,
    render,
)

needs_specification = pytest.mark.skipif(
    not SPECIFICATION.is_file(), reason="../shared/spec/scenarios.tsv is not beside this clone"
)


@needs_specification
def test_the_page_is_current() -> None:
    expected = render(read_specification(), read_carriers())
    assert PAGE.read_text(encoding="utf-8") == expected, "run scripts/scenarios"


@needs_specification
def test_every_marker_names_a_scenario_of_the_seeds() -> None:
    known = {scenario.id for scenario in read_specification()}
    assert read_carriers().keys() - known == set()


@needs_specification
def test_the_command_says_whether_the_page_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert capsys.readouterr().out == "docs/scenarios.md is current\n"


def test_markers_are_found_wherever_pytest_allows_them() -> None:
    code = """
pytestmark = pytest.mark.scenario("A0-001")

@pytest.mark.scenario("A0-002", "A0-003")
async def test_one(): ...

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.scenario("A0-004"))])
def test_two(x): ...

@pytest.mark.scenario("A0-005")
class TestGroup:
    @mark.scenario("A0-006")
    def test_three(self): ...

@pytest.mark.scenario("A0-007")
def helper(): ...
"""
    assert sorted(marked_tests(ast.parse(code))) == [
        ("TestGroup::test_three", "A0-001"),
        ("TestGroup::test_three", "A0-005"),
        ("TestGroup::test_three", "A0-006"),
        ("test_one", "A0-001"),
        ("test_one", "A0-002"),
        ("test_one", "A0-003"),
        ("test_two", "A0-001"),
        ("test_two", "A0-004"),
    ]


def test_a_scenario_that_is_not_a_plain_string_is_refused() -> None:
    with pytest.raises(ValueError, match="plain string"):
        list(marked_tests(ast.parse("@pytest.mark.scenario(ID)\ndef test_one(): ...")))


def test_the_page_counts_and_lists() -> None:
    scenarios = [
        Scenario(id="S3-001", requirement="Ingress", title="A | B"),
        Scenario(id="S3-002", requirement="Ingress", title="C"),
    ]
    page = render(scenarios, {"S3-001": ["tests/x.py::test_a", "tests/y.py::test_b"]})
    assert "| S3 | Switchboard (seed 003) | 1 | 2 |" in page
    assert "| S3-001 | Ingress | A \\| B | `tests/x.py::test_a`<br>`tests/y.py::test_b` |" in page
    assert "| S3-002 | Ingress | C |  |" in page
