"""Every failure this system names.

    ButlersError
    ├── ClassifiedError                 carries one of the seven classes of the taxonomy
    │   ├── ClassificationError         classification_error   not retryable   Switchboard alone
    │   ├── ValidationError             validation_error       not retryable   + fields
    │   │   └── Forbidden               the same class on the wire; 403 over HTTP
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
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar


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


class ClassificationError(ClassifiedError):
    error_class = ErrorClass.CLASSIFICATION_ERROR


class ValidationError(ClassifiedError):
    """The caller's input is wrong; every wrong field is named at once."""

    error_class = ErrorClass.VALIDATION_ERROR

    def __init__(self, message: str, *, fields: tuple[FieldError, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"fields": [{"field": f.field, "error": f.error} for f in self.fields]}


class Forbidden(ValidationError):
    """The caller is known, and may not do this; the fields say what it may."""


class SenderRefused(Forbidden):
    """A message is not taken in because of who wrote it. Handing it in again changes nothing."""

    OPENING: ClassVar[str] = "the sender is not served on "  # how the message begins, also where it comes over the wire

    def __init__(self, channel: str, reason: str) -> None:
        message = f"{self.OPENING}{channel}: {reason}"
        fields = (FieldError(field="sender.identity", error=message.removeprefix("the sender ")),)
        super().__init__(message, fields=fields)


class RoutingError(ClassifiedError):
    error_class = ErrorClass.ROUTING_ERROR


class TargetUnavailable(ClassifiedError):
    error_class = ErrorClass.TARGET_UNAVAILABLE
    default_retryable = True


class CircuitOpenError(TargetUnavailable):
    """The breaker refuses before anything is tried."""


class TimeoutExceeded(ClassifiedError):
    error_class = ErrorClass.TIMEOUT
    default_retryable = True


class OverloadRejected(ClassifiedError):
    error_class = ErrorClass.OVERLOAD_REJECTED
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


def from_wire(
    error_class: str, message: str, *, retryable: bool | None = None, retry_after: float | None = None
) -> ClassifiedError:
    """The exception for an error that another system reported; a class we do not know is an internal error."""
    kind = _BY_CLASS.get(error_class, InternalError)
    error = _refused(message) if kind is ValidationError else kind(message)
    error.retry_after = retry_after
    if retryable is not None:
        error.retryable = retryable
    return error


def _refused(message: str) -> ValidationError:
    """What a validation error was before it went over the wire."""
    if not message.startswith(SenderRefused.OPENING):
        return ValidationError(message)
    channel, _, reason = message.removeprefix(SenderRefused.OPENING).partition(": ")
    return SenderRefused(channel, reason)
