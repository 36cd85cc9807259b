"""Envelopes at the one place where all of them are read: a sound one, or a refusal with its fields."""

from __future__ import annotations

from typing import Any

import pytest

from butlers.contracts.envelope import Envelope
from butlers.contracts.ingest import IngestEnvelope
from butlers.contracts.notify import NotifyEnvelope
from butlers.contracts.route import RouteEnvelope
from butlers.errors import ValidationError
from tests.fuzz.corpus import INGESTS, NOTIFIES, ROUTES
from tests.fuzz.mutation import as_json, mangled, mutated
from tests.fuzz.tries import Findings, dice_of, tries

SOUND: list[tuple[type[Envelope], dict[str, Any]]] = [
    *((RouteEnvelope, document) for document in ROUTES),
    *((NotifyEnvelope, document) for document in NOTIFIES),
    *((IngestEnvelope, document) for document in INGESTS),
]


def test_what_the_fuzzing_starts_from_is_sound() -> None:
    for model, document in SOUND:
        model.parse(document)


@pytest.mark.parametrize("kind", ["bytes", "structure"])
def test_an_envelope_is_read_or_refused(kind: str) -> None:
    findings, refused = Findings(kind), 0
    for number in range(tries(kind)):
        dice = dice_of(kind, number)
        model, document = dice.choice(SOUND)
        given = mangled(as_json(document), dice) if kind == "bytes" else mutated(document, dice)
        with findings.watch(number, ValidationError):
            refused += 1
            parsed: Envelope = model.parse(given)
            refused -= 1
            # What was read can be written down and read again.
            model.parse(as_json(parsed.to_wire()))
    findings.check()
    assert refused > tries(kind) / 2  # most of it is really malformed
