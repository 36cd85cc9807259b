"""Every failure this system names.

    ButlersError
    ├── ClassifiedError                 carries one of the seven classes of the taxonomy
    │   ├── ClassificationError         classification_error   not retryable   Switchboard alone
    │   ├── ValidationError             validation_error       not retryable   + fields
    │   │   ├── NotFound                the same class on the wire, told apart by its kind
    │   │   │   └── UnknownTool         the butler has no such tool
    │   │   ├── Conflict                the same class, its own kind
    │   │   └── Forbidden               the same class, its own kind
    │   │       └── SenderRefused       who wrote a message is not served
    │   ├── RoutingError                routing_error          not retryable   Switchboard alone
    │   ├── TargetUnavailable           target_unavailable     retryable       + retry_after
    │   │   └── CircuitOpenError        the same class on the wire
    │   ├── TimeoutExceeded             timeout                retryable
    │   ├── OverloadRejected            overload_rejected      retryable       + retry_after
    │   └── InternalError               internal_error         not retryable
    │       └── Quarantined             the same class on the wire, known by its first words
    ├── ConfigurationError              file, key and remedy: stops the start
    │   └── ServiceDown                 rightly configured, as far as one can see, and it does not answer
    └── LeaseLost                       somebody else owns the work now; drop the result

`retryable` is an attribute and not a branch of the tree: the same class may be retryable for one cause and final
for another (a blocked recipient is `target_unavailable` for ever).

Each type knows its HTTP status and the exit code of the command line. Butlers tell each other a `kind` beside the
class (`to_wire`), so that `from_wire` makes the same type again; the HTTP API says it by its status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self


class ErrorClass(StrEnum):
    """The taxonomy, as it travels on the wire."""

    CLASSIFICATION_ERROR = "classification_error"
    VALIDATION_ERROR = "validation_error"
    ROUTING_ERROR = "routing_error"
    TARGET_UNAVAILABLE = "target_unavailable"
    TIMEOUT = "timeout"
    OVERLOAD_REJECTED = "overload_rejected"
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One thing that is wrong with one field of an input."""

    field: str  # dotted path, "" for the input as a whole
    error: str  # what is wrong, without echoing the value


class ButlersError(Exception):
    """The root: whatever we raise on purpose."""


class ClassifiedError(ButlersError):
    """A failure with a place in the taxonomy."""

    error_class: ClassVar[ErrorClass]
    wire_kind: ClassVar[str] = ""  # tells types of one class apart between butlers; "": the class says all
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1  # 1: it was tried and failed
    default_retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, retryable: bool | None = None, retry_after: float | None = None, remedy: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy  # what the operator can do about it; for this machine's screens, not for the wire
        self.retryable = self.default_retryable if retryable is None else retryable
        self.retry_after = retry_after  # seconds
        self.partial: dict[str, Any] | None = None  # what is known in spite of the failure, for the answer

    def describe(self) -> dict[str, Any]:
        """The error as callers see it."""
        described: dict[str, Any] = {
            "class": self.error_class.value,
            "message": self.message,
            "retryable": self.retryable,
        }
        if self.retry_after is not None:
            described["retry_after_seconds"] = round(self.retry_after, 3)
        return described

    def to_wire(self) -> dict[str, Any]:
        """The error as another butler reads it, with `from_wire_document`."""
        return self.describe() | ({"kind": self.wire_kind} if self.wire_kind else {})


class ClassificationError(ClassifiedError):
    error_class = ErrorClass.CLASSIFICATION_ERROR


class ValidationError(ClassifiedError):
    """The caller's input is wrong; every wrong field is named at once."""

    error_class = ErrorClass.VALIDATION_ERROR
    http_status = 422
    exit_code = 2  # the command or its input is wrong

    def __init__(self, message: str, *, fields: tuple[FieldError, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields

    @classmethod
    def of(cls, field: str, error: str) -> Self:
        """A refusal because of one field."""
        return cls(f"{field}: {error}" if field else error, fields=(FieldError(field=field, error=error),))

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"fields": [{"field": f.field, "error": f.error} for f in self.fields]}


class NotFound(ValidationError):
    """What the caller names is not there."""

    wire_kind = "not_found"
    http_status = 404


class UnknownTool(NotFound):
    """The butler has no such tool, because it has not the module that the tool belongs to."""

    wire_kind = "unknown_tool"


class Conflict(ValidationError):
    """Not possible in the state that the thing is in; nothing was changed."""

    wire_kind = "conflict"
    http_status = 409


class Forbidden(ValidationError):
    """The caller is known, and may not do this; the fields say what it may."""

    wire_kind = "forbidden"
    http_status = 403


class SenderRefused(Forbidden):
    """A message is not taken in because of who wrote it. Handing it in again changes nothing."""

    wire_kind = "sender_refused"

    @classmethod
    def on(cls, channel: str, reason: str) -> Self:
        problem = f"is not served on {channel}: {reason}"
        return cls(f"the sender {problem}", fields=(FieldError(field="sender.identity", error=problem),))


class RoutingError(ClassifiedError):
    error_class = ErrorClass.ROUTING_ERROR


class TargetUnavailable(ClassifiedError):
    error_class = ErrorClass.TARGET_UNAVAILABLE
    http_status = 503
    exit_code = 4  # the system, or what it needs, did not answer
    default_retryable = True


class CircuitOpenError(TargetUnavailable):
    """The breaker refuses before anything is tried."""


class TimeoutExceeded(ClassifiedError):
    error_class = ErrorClass.TIMEOUT
    http_status = 504
    exit_code = 4
    default_retryable = True


class OverloadRejected(ClassifiedError):
    error_class = ErrorClass.OVERLOAD_REJECTED
    http_status = 429
    default_retryable = True


class InternalError(ClassifiedError):
    error_class = ErrorClass.INTERNAL_ERROR


class Quarantined(InternalError):
    """Attempts at the work were begun and never ended, too often: it is not begun again."""

    OPENING: ClassVar[str] = "quarantined after "  # how the message begins, also where it comes over the wire

    @classmethod
    def after(cls, attempts: int, last_failure: str | None) -> Quarantined:
        why = last_failure or "the process that worked on it ended"
        return cls(f"{cls.OPENING}{attempts} attempts that did not end; the last time: {why}")


class ConfigurationError(ButlersError):
    """Something the operator must mend before the system can start."""

    def __init__(self, problem: str, *, source: str, key: str, remedy: str) -> None:
        super().__init__(f"{source}: {key}: {problem} ({remedy})")
        self.problem = problem
        self.source = source
        self.key = key
        self.remedy = remedy


class ServiceDown(ConfigurationError):
    """Something outside that the system needs, such as its database, does not answer."""


class LeaseLost(ButlersError):
    """A worker came back too late: its claim was taken over, so its result must not be written."""


_LEAVES: tuple[type[ClassifiedError], ...] = (
    ClassificationError,
    ValidationError,
    RoutingError,
    TargetUnavailable,
    TimeoutExceeded,
    OverloadRejected,
    InternalError,
)
RETRYABLE_BY_DEFAULT: dict[ErrorClass, bool] = {leaf.error_class: leaf.default_retryable for leaf in _LEAVES}
_BY_CLASS: dict[str, type[ClassifiedError]] = {leaf.error_class.value: leaf for leaf in _LEAVES}
_KINDS: tuple[type[ValidationError], ...] = (NotFound, UnknownTool, Conflict, Forbidden, SenderRefused)
_BY_KIND: dict[str, type[ValidationError]] = {kind.wire_kind: kind for kind in _KINDS}


def from_wire(
    error_class: str, message: str, *, retryable: bool | None = None, retry_after: float | None = None, kind: str = ""
) -> ClassifiedError:
    """The exception for an error that another system reported; a class we do not know is an internal error."""
    found = _BY_CLASS.get(error_class, InternalError)
    error = (_BY_KIND.get(kind, found) if found is ValidationError else found)(message)
    error.retry_after = retry_after
    if retryable is not None:
        error.retryable = retryable
    return error


def from_wire_document(document: Mapping[str, Any], *, status: int | None = None) -> ClassifiedError:
    """The exception for what `to_wire` told, or for the error in an answer of the HTTP API with this status."""
    by_status = next((kind.wire_kind for kind in _KINDS if kind.http_status == status), "")
    error = from_wire(
        str(document.get("class")),
        str(document.get("message")),
        retryable=document.get("retryable"),
        retry_after=document.get("retry_after_seconds"),
        kind=str(document.get("kind") or by_status),
    )
    if isinstance(error, ValidationError):
        error.fields = _fields(document.get("fields"))
    return error


def _fields(value: Any) -> tuple[FieldError, ...]:
    fields = [field for field in value if isinstance(field, Mapping)] if isinstance(value, Sequence) else []
    return tuple(FieldError(field=str(field.get("field", "")), error=str(field.get("error", ""))) for field in fields)
