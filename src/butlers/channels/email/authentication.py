"""Whether the receiving mail server vouches for a mail's From (RFC 8601, Authentication-Results). Pure and linear.

    Authentication-Results: mx.example.org; dkim=pass header.d=example.com; spf=pass smtp.mailfrom=a@example.com;
        dmarc=pass (p=none) header.from=example.com

Only the topmost header of the server that is named in the settings counts: what stands below it came with the mail and
may be forged. A mail passes by dmarc for the domain of its From; only where the server says nothing of dmarc, or
`none`, by dkim or spf for that domain or one above it. The server vouches for a domain, so the From must name one
address, and no other may be read out of it: the connector says which in `raw["author"]`, or the header is read here.
A method that is named twice with different results has failed: one of the two is not the server's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_HEADERS = 20  # of the name that are looked at
MAX_HEADER = 8_000  # characters of one
FIRST_LINES = 2_000  # characters of a mail in which a command is looked for
MACHINE_HEADERS = frozenset(
    {"list-id", "list-unsubscribe", "feedback-id", "x-auto-response-suppress", "x-autoreply", "x-loop", "precedence"}
)
_SYNTAX = " \t\r\n;=()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    method: str
    outcome: str
    properties: Mapping[str, str]  # header.from -> example.com


def vouches_for(sender: str, raw: Any, server: str | None) -> bool:
    """Whether the server `server` says in the headers of a mail (`raw["headers"]`) that `sender` wrote it."""
    _, at, domain = sender.rpartition("@")
    headers = _headers(raw)
    if not server or not at or not domain or not _is_author(sender, raw, _values(headers, "from")):
        return False
    for value in _values(headers, "authentication-results")[:MAX_HEADERS]:
        name, results = read_results(value[:MAX_HEADER])
        if name.casefold() == server.casefold():
            return passes(results, domain)
    return False


def written_by_a_machine(raw: Any) -> bool:
    """Whether an answer to it could start a loop of two machines."""
    headers = _headers(raw)
    automatic = [value.strip().casefold() for value in _values(headers, "auto-submitted")]
    empty = any(value.strip() in ("", "<>") for value in _values(headers, "return-path"))
    return empty or any(value != "no" for value in automatic) or any(_values(headers, name) for name in MACHINE_HEADERS)


def command_lines(text: str, raw: Any) -> list[str]:
    """The lines in which a command to the system may stand: the subject, and the first line below it.

    Further down a mail may hold what others wrote: quoted, forwarded, pasted.
    """
    lines = [line.strip() for line in text[:FIRST_LINES].splitlines() if line.strip()]
    subject = "".join(_values(_headers(raw), "subject")[:1]).strip()
    return lines[: 2 if lines[:1] == [subject] else 1]


def passes(results: Sequence[Result], domain: str) -> bool:
    if any(result.method == "dmarc" and result.outcome != "none" for result in results):
        return _passes(results, "dmarc", "header.from", domain, exact=True)
    others = (("dkim", "header.d"), ("dkim", "header.i"), ("spf", "smtp.mailfrom"))
    return any(_passes(results, method, property_, domain, exact=False) for method, property_ in others)


def read_results(value: str) -> tuple[str, tuple[Result, ...]]:
    parts = " ".join(_plain(value).split()).split(";")
    first, *rest = (part.replace(" =", "=").replace("= ", "=") for part in parts)
    name = first.split(maxsplit=1)[0] if first.split() else ""
    return name, tuple(result for part in rest if (result := _result(part)) is not None)


def _is_author(sender: str, raw: Any, written: Sequence[str]) -> bool:
    """Whether there is one From, and `sender` is the one address in it."""
    if len(written) != 1:
        return False
    if "author" in raw:
        return isinstance(raw["author"], str) and raw["author"].casefold() == sender.casefold()
    # Perhaps decoded before it came here: then a comma or an address in the name cannot be told from a real one.
    value = written[0].strip()
    address = value[value.rfind("<") + 1 : -1] if value.endswith(">") else value
    return value.count("@") == 1 and address.strip().casefold() == sender.casefold()


def _passes(results: Sequence[Result], method: str, property_: str, domain: str, *, exact: bool) -> bool:
    """Whether this method passed for the domain. Of several signatures one is enough; the others decide alone."""
    reported = [result for result in results if result.method == method]
    if method != "dkim" and len({result.outcome for result in reported}) > 1:
        return False
    return any(
        result.outcome == "pass" and _aligned(result.properties.get(property_, ""), domain, exact=exact)
        for result in reported
    )


def _aligned(named: str, domain: str, *, exact: bool) -> bool:
    found = named.rpartition("@")[2].strip(".").casefold()
    expected = domain.strip(".").casefold()
    return found == expected or (not exact and "." in found and expected.endswith(f".{found}"))


def _result(part: str) -> Result | None:
    words = part.split()
    method, equals, outcome = (words[0] if words else "").partition("=")
    if not equals:
        return None
    properties: dict[str, str] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if equals:
            properties.setdefault(name.casefold(), value)
    return Result(method=method.partition("/")[0].casefold(), outcome=outcome.casefold(), properties=properties)


def _plain(value: str) -> str:
    """Without comments; what is quoted loses its quotes and everything in it that could mean something outside."""
    remaining: list[str] = []
    depth, quoted, escaped = 0, False, False
    for character in value:
        if escaped:
            escaped = False
        elif character == "\\" and (depth or quoted):
            escaped = True
        elif character == '"' and not depth:
            quoted = not quoted
        elif character in "()" and not quoted:
            depth = max(0, depth + (1 if character == "(" else -1))
        elif not depth and not (quoted and character in _SYNTAX):
            remaining.append(character)
    return "".join(remaining)


def _headers(raw: Any) -> Mapping[Any, Any]:
    headers = raw.get("headers") if isinstance(raw, Mapping) else None
    return headers if isinstance(headers, Mapping) else {}


def _values(headers: Mapping[Any, Any], name: str) -> list[str]:
    found = (value for key, value in headers.items() if isinstance(key, str) and key.strip().casefold() == name)
    return [one for value in found for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
