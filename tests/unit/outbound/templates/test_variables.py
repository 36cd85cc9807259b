"""Variables: what is declared, what is used and what a message brings must agree."""

from __future__ import annotations

from typing import Any

import pytest

from butlers.errors import ValidationError
from butlers.outbound.templates.store import checked_shape
from butlers.outbound.templates.variables import (
    DEEPEST,
    MOST_CHARACTERS,
    MOST_NAMED,
    MOST_VALUES,
    Use,
    check_declarations,
    check_inline,
    check_uses,
    check_variables,
)
from tests.unit.outbound.templates.given import ANN, INVOICE, invoice, one_text


def fields_of(refused: pytest.ExceptionInfo[ValidationError]) -> dict[str, str]:
    return {field.field: field.error for field in refused.value.fields}


def use(names: str, *, locale: str = "en", channel: str = "default", part: str = "text") -> Use:
    return Use(locale=locale, channel=channel, part=part, names=frozenset(names.split()))


# --- a message's values ----------------------------------------------------------------------------------------------


def test_values_are_completed_by_defaults() -> None:
    assert check_variables(invoice(), ANN) == {"name": "Ann", "total": 12.5, "paid": False, "lines": []}


def test_a_variable_that_may_be_absent_and_has_no_default_is_null() -> None:
    document = invoice(variables={"name": {"required": False}})
    assert check_variables(document, {}) == {"name": None}
    assert check_variables(document, {"name": None}) == {"name": None}


def test_every_misfit_is_named_at_once_and_no_value_is_quoted() -> None:
    given = {"total": "secret-1", "paid": 1, "lines": {"secret-2": 1}, "amount": "secret-3"}
    with pytest.raises(ValidationError) as refused:
        check_variables(invoice(), given)
    assert fields_of(refused) == {
        "variables.amount": "is not declared by template invoice",
        "variables.name": "is required by template invoice",
        "variables.total": "must be a number",
        "variables.paid": "must be a boolean",
        "variables.lines": "must be a list",
    }
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("string", ["", "x"], [1, True, [], {}]),
        ("number", [0, -1.5, 10**15], ["1", True, [], {}]),
        ("boolean", [True, False], [0, "true", []]),
        ("list", [[], [1, "x"]], [{}, "x", 1]),
        ("object", [{}, {"a": 1}], [[], "x", 1]),
    ],
)
def test_types_are_strict(kind: str, good: list[Any], bad: list[Any]) -> None:
    document = one_text("{{ it }}", it=kind)
    for value in good:
        assert check_variables(document, {"it": value}) == {"it": value}
    for value in bad:
        with pytest.raises(ValidationError):
            check_variables(document, {"it": value})


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        "x" * (MOST_CHARACTERS + 1),
        ["x"] * MOST_VALUES,
        [[1] * 200] * 200,
        nested(DEEPEST),
        nested(100_000),
        [10**400],
        [float("nan")],
        [float("inf")],
        [{"k" * (MOST_CHARACTERS + 1): 1}],
    ],
    ids=["long", "many", "many within", "deep", "very deep", "huge", "nan", "infinite", "long key"],
)
def test_what_is_too_large_is_refused_before_anything_reads_it(value: Any) -> None:
    with pytest.raises(ValidationError):
        check_variables(one_text("{{ it }}", it="list"), {"it": value})


def test_a_crowd_of_unknown_names_is_refused_in_a_short_message() -> None:
    with pytest.raises(ValidationError) as refused:
        check_variables(invoice(), {f"{'x' * 1_000}{number}": 1 for number in range(200)})
    assert len(refused.value.fields) == MOST_NAMED
    assert len(str(refused.value)) < 10_000


# --- a template's declarations ---------------------------------------------------------------------------------------


def test_a_default_has_the_type_and_is_for_what_may_be_absent() -> None:
    declared = {
        "name": {"required": False, "default": 7},
        "total": {"type": "number", "default": 1},
    }
    with pytest.raises(ValidationError) as refused:
        check_declarations(invoice(variables=declared))
    assert fields_of(refused) == {
        "variables.name.default": "must be a string",
        "variables.total.default": "goes with required: false",
    }


def test_names_that_are_used_and_not_declared_and_the_reverse_are_refused() -> None:
    document = one_text("x", name="string", total="number")
    with pytest.raises(ValidationError) as refused:
        check_uses(document, [use("name nmae"), use("name", channel="sms", part="subject")])
    assert fields_of(refused) == {
        "locales.en.default.text": "uses {{nmae}}, which template note does not declare",
        "variables.total": "is declared, but no text of template note uses it",
    }


def test_a_translation_leaves_nothing_out_that_the_original_says_there() -> None:
    document = one_text("x", name="string", total="number", link="string")
    original = [use("name total"), use("name link", channel="email")]
    check_uses(document, [*original, use("total name", locale="de")])  # mail is not translated: nothing is left out
    check_uses(document, [*original, use("name total link", locale="de")])  # and more may be said
    with pytest.raises(ValidationError) as refused:
        check_uses(document, [*original, use("name", locale="de"), use("link", locale="de", channel="email")])
    assert fields_of(refused) == {
        "locales.de.default": "leaves out {{total}}, which en has there (template note)",
        "locales.de.email": "leaves out {{name}}, which en has there (template note)",
    }


def test_the_names_of_a_body_are_those_of_its_variables() -> None:
    check_inline(["name"], {"name": "Ann"})
    with pytest.raises(ValidationError) as refused:
        check_inline(["name", "total"], {"name": "Ann", "amount": 1})
    assert fields_of(refused) == {
        "variables.total": "is required: the body uses it",
        "variables.amount": "is given, but the body does not use it",
    }


# --- a template's shape ----------------------------------------------------------------------------------------------


def test_tags_are_stored_in_one_spelling() -> None:
    contents = INVOICE["locales"]["en"]
    document = checked_shape(invoice(default_locale="EN-us", locales={"en-US": contents, "DE-ch": contents}))
    assert document.default_locale == "en-US"
    assert list(document.locales) == ["en-US", "de-CH"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"default_locale": "fr"}, "locales.fr.default"),
        ({"default_locale": "de-CH"}, "locales.de-CH.default"),  # it has mail alone
        ({"default_locale": "de_CH"}, "default_locale"),
        ({"locales": INVOICE["locales"] | {"de_AT": INVOICE["locales"]["de"]}}, "locales.de_AT"),
        ({"locales": INVOICE["locales"] | {"DE": INVOICE["locales"]["de"]}}, "locales.de"),
        (
            {"locales": INVOICE["locales"] | {"fr": {"telegram": {"text": "x", "html": "<p>x</p>"}}}},
            "locales.fr.telegram.html",
        ),
        ({"locales": INVOICE["locales"] | {"fr": {"push": {"text": "x", "mjml": "<mjml/>"}}}}, "locales.fr.push.mjml"),
        ({"locales": {tag: {"default": {"text": "x" * 200_000}} for tag in ("en", "de", "fr", "it")}}, "locales"),
    ],
)
def test_what_could_not_be_rendered_for_everybody_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        checked_shape(invoice(**changes))
    assert [problem.field for problem in refused.value.fields] == [field]
