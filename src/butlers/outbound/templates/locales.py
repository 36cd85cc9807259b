"""Language tags (BCP 47) and the order in which a template's locales are tried. Pure.

    de-CH-1996  ->  de-CH-1996, de-CH, de, then the template's default        RFC 4647, section 3.4 (lookup)

A tag is compared without regard to case and written as RFC 5646 recommends: language in small letters, script with a
capital, region in capitals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from butlers.contracts.envelope import invalid

LONGEST_TAG = 64  # characters; RFC 5646 asks for 35 at least
# RFC 5646, section 2.1, without the tags that were registered before it (i-klingon and 25 others).
_TAG = re.compile(
    r"""
    (?:
        (?:[a-z]{2,3}(?:-[a-z]{3}){0,3}|[a-z]{4,8})     # language
        (?:-[a-z]{4})?                                  # script
        (?:-(?:[a-z]{2}|[0-9]{3}))?                     # region
        (?:-(?:[a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*        # variants
        (?:-[0-9a-wyz](?:-[a-z0-9]{2,8})+)*             # extensions
        (?:-x(?:-[a-z0-9]{1,8})+)?                      # private use
    |
        x(?:-[a-z0-9]{1,8})+
    )
    """,
    re.VERBOSE,
)


def canonical_tag(tag: str, *, field: str = "locale") -> str:
    """The tag in its recommended spelling; raises `ValidationError` for what is no language tag."""
    lowered = tag.lower()
    if len(tag) > LONGEST_TAG or not tag.isascii() or _TAG.fullmatch(lowered) is None:
        raise invalid(field, "must be a language tag like de or de-CH (BCP 47)")
    first, *rest = lowered.split("-")
    spelled, in_singleton = [first], len(first) == 1
    for subtag in rest:
        in_singleton = in_singleton or len(subtag) == 1
        spelled.append(subtag if in_singleton else _spelled(subtag))
    return "-".join(spelled)


def _spelled(subtag: str) -> str:
    if len(subtag) == 2:
        return subtag.upper()
    return subtag.capitalize() if len(subtag) == 4 else subtag


def fallbacks(tag: str | None, *, default: str) -> Iterator[str]:
    """Canonical tags from the most to the least particular, and the default last; none of them twice."""
    subtags = canonical_tag(tag).split("-") if tag is not None else []
    while subtags:
        if (candidate := "-".join(subtags)) != default:
            yield candidate
        subtags.pop()
        if subtags and len(subtags[-1]) == 1:  # a singleton says nothing without what follows it
            subtags.pop()
    yield default
