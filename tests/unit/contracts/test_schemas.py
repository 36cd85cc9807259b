"""docs/contracts says what the code enforces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema import ValidationError as SchemaMismatch

from butlers.contracts.envelope import Envelope
from butlers.contracts.schemas import ENVELOPES, export, schema_of

from .documents import Document, any_document
from .test_envelopes import by_kind, example

DIRECTORY = Path(__file__).parents[3] / "docs" / "contracts"


def validator(kind: type[Envelope]) -> Any:
    return Draft202012Validator(json.loads(schema_of(kind)))


def test_the_exported_schemas_are_those_of_the_code(tmp_path: Path) -> None:
    export(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in DIRECTORY.glob("*.schema.json")}
    assert made == kept, "run: python -m butlers.contracts.schemas docs/contracts"
    assert set(made) == {f"{kind.VERSION}.schema.json" for kind in ENVELOPES}


@by_kind
def test_the_schema_is_a_schema_and_takes_the_example(kind: type[Envelope]) -> None:
    Draft202012Validator.check_schema(json.loads(schema_of(kind)))
    validator(kind).validate(example(kind))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_document())
def test_the_schema_takes_what_the_code_takes_and_makes(case: tuple[type[Envelope], Document]) -> None:
    kind, document = case
    validator(kind).validate(document)
    validator(kind).validate(kind.parse(document).to_wire())


@by_kind
@pytest.mark.parametrize("change", [{"surprise": 1}, {"schema_version": "ingest.v2"}])
def test_the_schema_refuses_unknown_fields_and_versions(kind: type[Envelope], change: Document) -> None:
    with pytest.raises(SchemaMismatch):
        validator(kind).validate(example(kind) | change)


@by_kind
def test_the_schema_refuses_a_document_without_its_parts(kind: type[Envelope]) -> None:
    with pytest.raises(SchemaMismatch):
        validator(kind).validate({"schema_version": kind.VERSION})
