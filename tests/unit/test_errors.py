"""The taxonomy as callers see it."""

from __future__ import annotations

import pytest

from butlers import errors
from butlers.errors import (
    RETRYABLE_BY_DEFAULT,
    CircuitOpenError,
    ClassificationError,
    ClassifiedError,
    ConfigurationError,
    Conflict,
    ErrorClass,
    FieldError,
    Forbidden,
    InternalError,
    NotFound,
    OverloadRejected,
    RoutingError,
    SenderRefused,
    TargetUnavailable,
    TimeoutExceeded,
    UnknownTool,
    ValidationError,
    from_wire,
    from_wire_document,
)

LEAVES: list[tuple[type[ClassifiedError], str, bool]] = [
    (ClassificationError, "classification_error", False),
    (ValidationError, "validation_error", False),
    (RoutingError, "routing_error", False),
    (TargetUnavailable, "target_unavailable", True),
    (TimeoutExceeded, "timeout", True),
    (OverloadRejected, "overload_rejected", True),
    (InternalError, "internal_error", False),
]


@pytest.mark.parametrize(("kind", "name", "retryable"), LEAVES)
def test_each_class_has_its_name_and_its_default(kind: type[ClassifiedError], name: str, retryable: bool) -> None:
    error = kind("what happened")
    assert error.error_class == name
    assert error.retryable is retryable
    assert RETRYABLE_BY_DEFAULT[ErrorClass(name)] is retryable
    described = error.describe()
    assert (described["class"], described["message"], described["retryable"]) == (name, "what happened", retryable)
    assert "retry_after_seconds" not in described


def test_there_are_seven_classes_and_each_has_one_exception() -> None:
    assert {name for _, name, _ in LEAVES} == {member.value for member in ErrorClass}
    assert len(ErrorClass) == 7


def test_retryable_is_a_matter_of_the_cause() -> None:
    assert TargetUnavailable("blocked", retryable=False).retryable is False
    assert InternalError("try again", retryable=True).describe()["retryable"] is True


def test_a_wait_is_told_in_seconds() -> None:
    assert OverloadRejected("full", retry_after=1.23456).describe()["retry_after_seconds"] == 1.235


def test_an_open_circuit_is_target_unavailable_on_the_wire() -> None:
    assert CircuitOpenError("open").describe() == {
        "class": "target_unavailable",
        "message": "open",
        "retryable": True,
    }


def test_a_validation_error_lists_its_fields() -> None:
    fields = (FieldError(field="a.b", error="is required"), FieldError(field="", error="is not valid JSON"))
    assert ValidationError("m", fields=fields).describe()["fields"] == [
        {"field": "a.b", "error": "is required"},
        {"field": "", "error": "is not valid JSON"},
    ]


@pytest.mark.parametrize(("kind", "name", "retryable"), LEAVES)
def test_an_error_from_the_wire_is_the_same_error(kind: type[ClassifiedError], name: str, retryable: bool) -> None:
    error = from_wire(name, "m")
    assert type(error) is kind
    assert (error.message, error.retryable, error.retry_after) == ("m", retryable, None)
    told = from_wire(name, "m", retryable=not retryable, retry_after=5)
    assert (told.retryable, told.retry_after) == (not retryable, 5)


@pytest.mark.parametrize("name", ["", "made_up", "Timeout", "circuit_open"])
def test_an_unknown_class_from_the_wire_is_an_internal_error(name: str) -> None:
    error = from_wire(name, "m")
    assert type(error) is InternalError
    assert error.retryable is False


def test_a_configuration_error_names_source_key_and_remedy() -> None:
    error = ConfigurationError("unknown key", source="butler.toml", key="butler.prot", remedy="mend its spelling")
    assert str(error) == "butler.toml: butler.prot: unknown key (mend its spelling)"


def test_whatever_we_raise_on_purpose_has_one_root() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert all(issubclass(kind, errors.ButlersError) for kind in kinds)
    assert len(kinds) >= 11


def test_a_refused_sender_is_one_also_after_the_wire() -> None:
    refused = SenderRefused.on("email", "unknown_sender")
    heard = from_wire_document(refused.to_wire())
    assert isinstance(heard, SenderRefused)
    assert heard.describe() == refused.describe()


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (NotFound, 404, 2),
        (UnknownTool, 404, 2),
        (Conflict, 409, 2),
        (Forbidden, 403, 2),
        (ValidationError, 422, 2),
        (OverloadRejected, 429, 1),
        (TargetUnavailable, 503, 4),
        (TimeoutExceeded, 504, 4),
        (InternalError, 500, 1),
    ],
)
def test_an_error_knows_its_status_and_exit_code_also_after_the_wire(
    kind: type[ClassifiedError], status: int, code: int
) -> None:
    heard = from_wire_document(kind("m").to_wire())
    assert type(heard) is kind
    assert (heard.http_status, heard.exit_code) == (status, code)


@pytest.mark.parametrize(
    ("status", "kind"), [(404, NotFound), (409, Conflict), (403, Forbidden), (422, ValidationError)]
)
def test_an_answer_of_the_http_api_says_the_type_by_its_status(status: int, kind: type[ClassifiedError]) -> None:
    told = kind("m").describe()
    assert "kind" not in told
    assert type(from_wire_document(told, status=status)) is kind
