"""Language tags: which are well formed, how they are spelled, and in which order a template's locales are tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.errors import ValidationError
from butlers.outbound.templates.locales import LONGEST_TAG, canonical_tag, fallbacks
from butlers.outbound.templates.store import chosen_content
from tests.unit.outbound.templates.given import invoice

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LANGUAGES = st.text(_LETTERS, min_size=2, max_size=3)
_SCRIPTS = st.lists(st.text(_LETTERS, min_size=4, max_size=4), max_size=1)
_REGIONS = st.lists(st.text(_LETTERS, min_size=2, max_size=2), max_size=1)
_VARIANTS = st.lists(st.text(_LETTERS, min_size=5, max_size=8), max_size=2)
_EXTENSIONS = st.lists(st.text(_LETTERS, min_size=2, max_size=8), max_size=2)


@st.composite
def tags(draw: st.DrawFn) -> str:
    """Well-formed tags in any case."""
    extension = draw(_EXTENSIONS)
    subtags = [draw(_LANGUAGES), *draw(_SCRIPTS), *draw(_REGIONS), *draw(_VARIANTS), *(extension and ["u", *extension])]
    return "".join(draw(st.sampled_from((c.lower(), c.upper()))) for c in "-".join(subtags))


@pytest.mark.parametrize(
    ("given_tag", "spelled"),
    [
        ("DE", "de"),
        ("de-ch", "de-CH"),
        ("zh-hant-tw", "zh-Hant-TW"),
        ("DE-ch-1996", "de-CH-1996"),
        ("es-419", "es-419"),
        ("zh-cmn-HANS", "zh-cmn-Hans"),
        ("en-US-U-CO-PHONEBK", "en-US-u-co-phonebk"),
        ("x-Whatever-AB", "x-whatever-ab"),
    ],
)
def test_a_tag_has_one_spelling(given_tag: str, spelled: str) -> None:
    assert canonical_tag(given_tag) == spelled


@pytest.mark.parametrize(
    "malformed",
    [
        "",
        "d",
        "de_CH",
        "de-",
        "-de",
        "de--CH",
        "deutschland",
        "de-CH-",
        "de CH",
        "dé",
        "de-u",
        "x",
        "de-CH\n",
        "ſß",
        "*",
    ],
)
def test_what_is_no_tag_is_refused(malformed: str) -> None:
    with pytest.raises(ValidationError) as refused:
        canonical_tag(malformed)
    assert refused.value.fields[0].field == "locale"


def test_a_long_tag_is_refused() -> None:
    assert canonical_tag("de" + "-abcde" * 10)
    with pytest.raises(ValidationError):
        canonical_tag("de" + "-abcde" * LONGEST_TAG)


@pytest.mark.parametrize(
    ("wanted", "tried"),
    [
        ("de-CH-1996", ["de-CH-1996", "de-CH", "de", "en"]),
        ("zh-hant-cn-x-private1-private2", ["zh-Hant-CN-x-private1-private2", "zh-Hant-CN-x-private1", "zh-Hant-CN"]),
        ("en-GB", ["en-GB", "en"]),
        ("en", ["en"]),
        (None, ["en"]),
    ],
)
def test_the_order_of_rfc_4647(wanted: str | None, tried: list[str]) -> None:
    assert list(fallbacks(wanted, default="en"))[: len(tried)] == tried


@given(tags(), tags())
def test_every_tag_falls_back_to_the_default_by_way_of_its_own_prefixes(wanted: str, default: str) -> None:
    default = canonical_tag(default)
    tried = list(fallbacks(wanted, default=default))
    assert tried[-1] == default
    assert len(set(tried)) == len(tried)
    whole = canonical_tag(wanted)
    lengths = [len(tag) for tag in tried[:-1]]
    assert lengths == sorted(lengths, reverse=True)
    for tag in tried[:-1]:
        assert whole == tag or whole.startswith(f"{tag}-")
        assert len(tag.rpartition("-")[2]) > 1, "a singleton is never the end of a tag"
        assert canonical_tag(tag) == tag, "and what is tried is well formed"


@given(tags())
def test_case_does_not_matter(tag: str) -> None:
    assert canonical_tag(tag) == canonical_tag(tag.upper()) == canonical_tag(tag.lower())
    assert canonical_tag(tag).lower() == tag.lower()


@pytest.mark.parametrize(
    ("locale", "channel", "chosen"),
    [
        ("de-CH-1996", "email", ("de-CH", "email")),
        ("DE-ch", "telegram", ("de", "default")),  # de-CH has mail alone: the language decides before the channel
        ("de-AT", "email", ("de", "default")),
        ("fr", "email", ("en", "email")),
        ("fr", "sms", ("en", "default")),
        (None, "push", ("en", "default")),
    ],
)
def test_a_message_gets_the_nearest_language_and_within_it_its_channel(
    locale: str | None, channel: str, chosen: tuple[str, str]
) -> None:
    tag, name, content = chosen_content(invoice(), locale, channel)
    assert (tag, name) == chosen
    assert content == invoice().locales[tag][name]
