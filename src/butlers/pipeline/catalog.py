"""The jobs by name. A job's file is loaded when the job is asked for, so naming them all costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from butlers.contracts.envelope import invalid
from butlers.errors import ConfigurationError

if TYPE_CHECKING:
    from butlers.pipeline.job import Job

NAMES: tuple[str, ...] = (
    "connector-stats-hourly",
    "connector-stats-daily",
    "connector-stats-pruning",
    "lake-stream",
    "lake-compact",
    "lake-retain",
    "delivery-stats",
    "service-levels",
    "routing-quality",
    "routing-evaluate",
    "books",
    "audience-plan",
)


def find_job(name: str) -> Job:
    if name not in NAMES:
        raise invalid("job", f"is unknown; there are {', '.join(NAMES)}")
    return _load(name)


def jobs() -> Iterator[Job]:
    """Every job whose file is here, in the order of the names."""
    for name in NAMES:
        if find_spec(_module(name)) is not None:
            yield _load(name)


def _load(name: str) -> Job:
    module = _module(name)
    try:
        job: Job = import_module(module).JOB
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the job's file cannot be used: {error}",
            source=module,
            key=name,
            remedy="install the package whole, with the packages of its lock file",
        ) from error
    return job


def _module(name: str) -> str:
    return f"butlers.pipeline.jobs.{name.replace('-', '_')}"
