"""Templates on a real database and in the real worker process: versions, checks, and what hostile input costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from butlers.clock import ManualClock
from butlers.errors import NotFound, TargetUnavailable, ValidationError
from butlers.operations.templates import TemplateDocument
from butlers.outbound import MIGRATIONS, SCHEMA
from butlers.outbound.templates.renderer import Renderer
from butlers.outbound.templates.store import HELD_VERSIONS, Rendered, Templates
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.queries import Queries
from tests.database import cloned_database
from tests.unit.outbound.templates.given import ANN, INVOICE, invoice, one_text

pytestmark = pytest.mark.asyncio(loop_scope="module")
NOON = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def renderer() -> AsyncIterator[Renderer]:
    """One worker process for all tests."""
    renderer = Renderer()
    yield renderer
    await renderer.close()


@pytest_asyncio.fixture(loop_scope="module")
async def database(postgres_server: EmbeddedPostgres) -> AsyncIterator[Database]:
    async with cloned_database(postgres_server, [MIGRATIONS]) as database:
        yield database


@pytest.fixture
def templates(database: Database, renderer: Renderer) -> Templates:
    queries = Queries.load("butlers.outbound.templates", schema=SCHEMA)
    return Templates(database=database, queries=queries, clock=ManualClock(NOON), renderer=renderer)


async def stored(database: Database) -> list[tuple[str, int]]:
    rows = await database.fetch("select id, version from outbound.templates order by id, version")
    return [(row["id"], row["version"]) for row in rows]


# --- versions --------------------------------------------------------------------------------------------------------


async def test_every_change_is_a_version_and_older_ones_can_be_rendered(
    templates: Templates, database: Database
) -> None:
    first = await templates.put(one_text("Hello {{ name }}", name="string"), by="ann")
    again = await templates.put(one_text("Hello {{ name }}", name="string"), by="bob")
    second = await templates.put(one_text("Bye {{ name }}", name="string"), by="bob")
    back = await templates.put(one_text("Hello {{ name }}", name="string"), by="ann")
    assert [(one.version, one.created, one.created_by) for one in (first, again, second, back)] == [
        (1, True, "ann"),
        (1, False, "ann"),
        (2, True, "bob"),
        (3, True, "ann"),
    ]
    assert await stored(database) == [("note", 1), ("note", 2), ("note", 3)]
    assert await templates.versions("note") == [3, 2, 1]
    texts = [
        (await templates.render("note", version=n, locale=None, channel="sms", variables={"name": "Ann"})).text
        for n in (1, 2, 3)
    ]
    assert texts == ["Hello Ann", "Bye Ann", "Hello Ann"]
    assert (await templates.get("note")).version == 3
    assert (await templates.get("note", 2)).document.locales["en"]["default"].text == "Bye {{ name }}"


async def test_writers_at_the_same_time_get_versions_of_their_own(templates: Templates, database: Database) -> None:
    documents = [one_text(f"{number}") for number in range(8)]
    done = await asyncio.gather(*(templates.put(document, by="ann") for document in documents))
    assert sorted(one.version for one in done) == list(range(1, 9))
    for one in done:
        assert (await templates.get("note", one.version)).document == one.document
    assert len(await stored(database)) == 8


async def test_what_is_not_there_is_not_found(templates: Templates) -> None:
    await templates.put(one_text("x"), by="ann")
    for asked in (templates.get("other"), templates.get("note", 2), templates.check("other", {})):
        with pytest.raises(NotFound):
            await asked


async def test_templates_are_listed_by_name_in_their_latest_version(templates: Templates) -> None:
    for name in ("b", "a", "c"):
        for text in ("x", "y"):
            await templates.put(one_text(text).model_copy(update={"id": name}), by="ann")
    page = await templates.list(limit=2)
    assert [(row["id"], row["version"], row["created_by"]) for row in page] == [("a", 2, "ann"), ("b", 2, "ann")]
    assert [row["id"] for row in await templates.list(after="b", limit=2)] == ["c"]
    assert "document" not in page[0]


async def test_a_version_is_read_once_and_few_are_held(templates: Templates, database: Database) -> None:
    await templates.put(one_text("x"), by="ann")
    held = await templates.get("note", 1)
    await database.execute("delete from outbound.templates")
    assert await templates.get("note", 1) is held
    rows = [("many", number, one_text("x").to_wire(), "ann", NOON) for number in range(1, HELD_VERSIONS + 2)]
    for row in rows:
        await database.execute("insert into outbound.templates values ($1, $2, $3, $4, $5)", *row)
        await templates.get("many", row[1])
    with pytest.raises(NotFound):  # it made room
        await templates.get("note", 1)


# --- checks ----------------------------------------------------------------------------------------------------------


async def test_a_template_that_disagrees_with_itself_is_not_stored(templates: Templates, database: Database) -> None:
    wrong: dict[str, TemplateDocument] = {
        "locales.en.default.text": one_text("{{ nmae }}"),
        "variables.name": one_text("hello", name="string"),
        "locales.de.default": one_text("{{ name }}", name="string", locales={"de": {"default": {"text": "hallo"}}}),
        "locales.de.sms.text": one_text("x", locales={"de": {"sms": {"text": "{{ a"}}}),
        "locales.en.email.mjml": one_text("x", locales={"en": {"default": {"text": "x"}, "email": BROKEN_MAIL}}),
        "variables.name.default": invoice(variables=INVOICE["variables"] | {"name": {"default": "x"}}),
    }
    for field, document in wrong.items():
        with pytest.raises(ValidationError) as refused:
            await templates.put(document, by="ann")
        assert [problem.field for problem in refused.value.fields] == [field]
    assert await stored(database) == []


BROKEN_MAIL = {"text": "x", "mjml": "<mjml><mj-body><mj-text></mj-body></mjml>"}


async def test_a_message_is_checked_against_the_version_that_it_is_pinned_to(templates: Templates) -> None:
    await templates.put(one_text("{{ name }}", name="string"), by="ann")
    await templates.put(one_text("{{ name }} {{ age }}", name="string", age="number"), by="ann")
    assert await templates.check("note", {"name": "Ann"}, version=1) == 1
    assert await templates.check("note", {"name": "Ann", "age": 3}) == 2
    with pytest.raises(ValidationError) as refused:
        await templates.check("note", {"name": "Ann"})
    assert [problem.field for problem in refused.value.fields] == ["variables.age"]
    with pytest.raises(ValidationError):
        await templates.render("note", version=2, locale=None, channel="sms", variables={"name": "Ann"})


# --- rendering -------------------------------------------------------------------------------------------------------


async def test_a_message_by_channel_and_language(templates: Templates) -> None:
    await templates.put(invoice(), by="ann")

    async def rendered(locale: str | None, channel: str, **more: Any) -> Rendered:
        return await templates.render("invoice", version=1, locale=locale, channel=channel, variables=ANN | more)

    assert await rendered("de-AT", "telegram") == Rendered(
        subject=None, text="Ann, du schuldest 12.5.", html=None, locale="de"
    )
    mail = await rendered("de-CH-1996", "email", lines=[{"title": "Tee & <Milch>", "price": 2}])
    assert (mail.subject, mail.text, mail.locale) == ("Rechnung für Ann", "Grüezi Ann, total 12.5.", "de-CH")
    assert mail.html is not None
    assert "Tee &amp; &lt;Milch&gt;: 2" in mail.html
    assert (await rendered("fr", "email")).subject == "Invoice for Ann"
    with pytest.raises(ValidationError):
        await rendered("de_CH", "email")


async def test_the_default_text_shows_its_html_only_where_a_channel_can(templates: Templates) -> None:
    page = {"text": "x", "html": "<p>x</p>"}
    await templates.put(one_text("x", locales={"en": {"default": page}}), by="ann")
    on_sms = await templates.render("note", version=1, locale=None, channel="sms", variables={})
    by_mail = await templates.render("note", version=1, locale=None, channel="email", variables={})
    assert (on_sms.html, by_mail.html) == (None, "<html><head></head><body><p>x</p></body></html>")


async def test_a_body_of_a_message_is_rendered_by_its_variables_alone(templates: Templates) -> None:
    braces = "{{ name }} {% if %} {{"
    assert await templates.render_text(braces, {}) == braces
    assert await templates.render_text("Hi {{ name }} & co", {"name": "<Ann>"}) == "Hi <Ann> & co"
    for body, variables in (("{{ name }} {{ age }}", {"name": "x"}), ("x", {"name": "x"}), ("{{ name", {"name": "x"})):
        with pytest.raises(ValidationError):
            await templates.render_text(body, variables)


async def test_a_text_that_would_be_empty_or_too_long_is_refused(templates: Templates) -> None:
    text = "{% for i in (1..20) %}{{ a }}{% endfor %}"
    await templates.put(one_text(text, a="string"), by="ann")
    for value in (" \n ", "x" * 20_000):
        with pytest.raises(ValidationError) as refused:
            await templates.render("note", version=1, locale=None, channel="sms", variables={"a": value})
        assert refused.value.fields[0].field == "note.locales.en.default.text"


# --- hostile input ---------------------------------------------------------------------------------------------------

_SQUARED = "{{ a | replace: '', a | replace: '', a | size }}"
_ENDLESS = "{% for i in (1..9999) %}{% assign b = a | split: '' | sort | join: '' | upcase %}{% endfor %}x{{ b }}"


def deep(tag: str, times: int) -> str:
    return f"<mjml><mj-body>{f'<{tag}>' * times}{f'</{tag}>' * times}</mj-body></mjml>"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"text": _SQUARED}, "needs too much memory"),
        ({"text": _ENDLESS}, "takes too long"),
        ({"text": "{% for i in (1..9999) %}" * 3 + "{{ a }}" + "{% endfor %}" * 3}, "goes beyond a limit"),
        ({"text": "{% for i in (1..100000000000) %}{{ a }}{% endfor %}"}, "goes beyond a limit"),
        ({"text": "{{ a }}{{ (1..1000000000) | join: 'x' | size }}"}, "needs too much memory"),
    ],
)
async def test_a_message_that_costs_too_much_is_refused_and_the_next_one_is_not(
    templates: Templates, database: Database, content: dict[str, str], why: str
) -> None:
    document = one_text("x", a="string", locales={"en": {"default": content}}).to_wire()
    # Stored past its checks: what they let through must be bounded, too.
    await database.execute("insert into outbound.templates values ('evil', 1, $1, 'eve', $2)", document, NOON)
    with pytest.raises(ValidationError, match=why):
        await templates.render("evil", version=1, locale=None, channel="email", variables={"a": "x" * 200_000})
    assert await templates.render_text("{{ a }}", {"a": "still there"}) == "still there"


@pytest.mark.parametrize(
    "content",
    [
        {"text": "x", "mjml": deep("mj-wrapper", 5_000)},
        {"text": "x", "html": "<div>" * 30_000},
        {"text": "{% if a %}" * 5_000},
        {"text": "{{ a" + "[a" * 20_000 + "]" * 20_000 + " }}"},
        {"text": "{{ a " + "| append: a " * 10_000 + "}}{% for i in (1..9999999) %}{% endfor %}"},
    ],
    ids=["deep mjml", "deep html", "deep blocks", "deep path", "many filters"],
)
async def test_a_template_that_breaks_the_engine_is_not_stored(
    templates: Templates, database: Database, content: dict[str, str]
) -> None:
    document = one_text("x", a="string", locales={"en": {"default": {"text": "{{ a }}"}, "email": content}})
    with pytest.raises(ValidationError) as refused:
        await templates.put(document, by="eve")
    assert refused.value.fields[0].field.startswith("locales.en.email")
    assert await stored(database) == []
    assert await templates.render_text("{{ a }}", {"a": "still there"}) == "still there"


async def test_the_event_loop_goes_on_while_a_template_takes_its_time(templates: Templates) -> None:
    hostile = asyncio.create_task(templates.render_text(_ENDLESS, {"a": "x" * 200_000}))
    turns = 0
    while not hostile.done():
        turns += 1
        await asyncio.sleep(0)
    with pytest.raises(ValidationError, match="takes too long"):
        await hostile
    assert turns > 20


async def test_after_a_stop_nothing_is_rendered() -> None:
    for started in (False, True):
        renderer = Renderer()
        if started:
            await renderer.render({"text": "x"}, {}, field="body")
        await renderer.close()
        with pytest.raises(TargetUnavailable):
            await renderer.render({"text": "x"}, {}, field="body")
