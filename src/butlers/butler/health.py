"""How a butler is, part by part, for `/readyz`, `butlers status` and whoever looks after the system.

`/healthz` says that the process serves, and nothing else. `/readyz` says how its parts are:

    ok          nothing to do
    degraded    something of it does not work (a wrong password, a connector that is silent); the rest is served
    failing     it does not work at all; of an essential part it means that the butler is not ready (503)

To add a part, name its check where the part is wired (`daemon/compose/`, `daemon/system.py`):

    process.health.register("database", check, essential=True)     # of the process: every butler of it shows the part
    butler.add(Service(name="channels", health=check))             # of one butler

A check is an async function without arguments. It returns one `Finding`, or a mapping of names to findings when the
part has several members (channels, connectors). It is asked whenever somebody asks for `/readyz`, has two seconds, and
must be cheap: a part that has to call a provider does that in a loop and keeps the last result in a `LastKnown`:

    probes = LastKnown()
    butler.add(Service(name="credentials", health=probes.check))
    probes.note("imap", Finding.degraded("The mail server refuses the password.", remedy="Set BUTLER_EMAIL_PASSWORD."))
    probes.note("imap", Finding())                                 # it is well again

`sentence` says what is the matter and `remedy` what to do. Anybody who reaches the port may read both: no secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from butlers.errors import ClassifiedError
from butlers.telemetry import get_logger

log = get_logger("butlers.health")

CHECK_S = 2.0  # how long a check may take


class Condition(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    FAILING = "failing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How one part is."""

    condition: Condition = Condition.OK
    sentence: str = ""  # what is the matter
    remedy: str = ""  # what to do about it
    figures: Mapping[str, int | float | str] = field(default_factory=dict)  # what was measured

    @classmethod
    def degraded(cls, sentence: str, *, remedy: str = "", **figures: float | str) -> Self:
        return cls(condition=Condition.DEGRADED, sentence=sentence, remedy=remedy, figures=figures)

    @classmethod
    def failing(cls, sentence: str, *, remedy: str = "", **figures: float | str) -> Self:
        return cls(condition=Condition.FAILING, sentence=sentence, remedy=remedy, figures=figures)


Findings = Mapping[str, Finding]  # by the name of the member; "" for the part as a whole
Check = Callable[[], Awaitable[Finding | Findings]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One line of the report."""

    part: str
    name: str
    essential: bool
    finding: Finding

    def to_wire(self) -> dict[str, Any]:
        found = self.finding
        words = {"sentence": found.sentence, "remedy": found.remedy}
        named = {"part": self.part} | ({"name": self.name} if self.name else {})
        return (
            named
            | {"state": found.condition.value, **{key: word for key, word in words.items() if word}}
            | {**found.figures}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    parts: tuple[Part, ...]

    @property
    def ready(self) -> bool:
        return not any(part.essential and part.finding.condition is Condition.FAILING for part in self.parts)

    @property
    def condition(self) -> Condition:
        """The whole: a part that is not essential never makes it worse than degraded."""
        if not self.ready:
            return Condition.FAILING
        well = all(part.finding.condition is Condition.OK for part in self.parts)
        return Condition.OK if well else Condition.DEGRADED


class LastKnown:
    """What a loop found out last, by name: a check that costs nothing."""

    def __init__(self) -> None:
        self._findings: dict[str, Finding] = {}

    def note(self, name: str, finding: Finding) -> None:
        self._findings[name] = finding

    def forget(self, name: str) -> None:
        self._findings.pop(name, None)

    async def check(self) -> Findings:
        return dict(self._findings)


class Health:
    """The checks of one butler, together with those of its process."""

    def __init__(self, *, shared: Health | None = None) -> None:
        self._shared = shared
        self._checks: dict[str, tuple[Check, bool]] = {}
        self._examination: asyncio.Task[Report] | None = None

    def register(self, part: str, check: Check, *, essential: bool = False) -> None:
        """Add a part; two parts of one name would hide each other."""
        if part in self.checks():
            raise ValueError(f"there is a check of {part} already")
        self._checks[part] = (check, essential)

    def checks(self) -> dict[str, tuple[Check, bool]]:
        return (self._shared.checks() if self._shared else {}) | self._checks

    async def examine(self) -> Report:
        """Ask every check at once. Callers that come meanwhile share the answer: many of them cost what one costs."""
        if self._examination is None or self._examination.done():
            self._examination = asyncio.create_task(self._examine(), name="health")
        return await asyncio.shield(self._examination)

    async def _examine(self) -> Report:
        asked = [_ask(part, check, essential) for part, (check, essential) in self.checks().items()]
        answers = await asyncio.gather(*asked)
        return Report(parts=tuple(line for lines in answers for line in lines))


async def _ask(part: str, check: Check, essential: bool) -> list[Part]:
    found = await _asked(part, check)
    members = {"": found} if isinstance(found, Finding) else found
    return [Part(part=part, name=name, essential=essential, finding=one) for name, one in sorted(members.items())]


async def _asked(part: str, check: Check) -> Finding | Findings:
    try:
        async with asyncio.timeout(CHECK_S):
            return await check()
    except TimeoutError:
        return Finding.failing(f"The check of {part} did not answer within {CHECK_S:g} s.")
    except ClassifiedError as error:
        return Finding.failing(f"The check of {part} failed: {error.message}.")
    except Exception as error:
        log.error("health check failed", error=error, reason=part)
        return Finding.failing(f"The check of {part} failed ({type(error).__name__}).", remedy="Look into the log.")
