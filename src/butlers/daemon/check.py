"""What one check of `butlers doctor` says. The checks are in `checks.py` and `machine_checks.py`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from butlers.errors import ConfigurationError


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"  # works, but not all of it or not as it should
    FAIL = "fail"  # `butlers up` will refuse to start, or lose something


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str  # dotted: the subject and, where there are several, which one
    status: Status
    detail: str  # what was found; never a secret's value
    remedy: str = ""  # what to do about it


def ok(name: str, detail: str, remedy: str = "") -> Check:
    return Check(name=name, status=Status.OK, detail=detail, remedy=remedy)


def warn(name: str, detail: str, remedy: str) -> Check:
    return Check(name=name, status=Status.WARN, detail=detail, remedy=remedy)


def fail(name: str, detail: str, remedy: str) -> Check:
    return Check(name=name, status=Status.FAIL, detail=detail, remedy=remedy)


def refused(name: str, error: ConfigurationError) -> Check:
    """What stops a start stops it here, in the same words."""
    return fail(name, f"{error.source}: {error.key}: {error.problem}", error.remedy)
