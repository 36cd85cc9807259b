"""Templates at their three doors, in a running system: stored by an operator, read and tried by butlers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from butlers.operations.operation import Role
from tests.scenarios.messenger_door import call, official_call
from tests.scenarios.shared_system import running, system
from tests.scenarios.test_messenger_cli import cli, document, lines
from tests.system import RunningSystem
from tests.unit.outbound.templates.given import ANN, INVOICE

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def post(running: RunningSystem, path: str, body: Any, **headers: Any) -> httpx2.Response:
    return await running.http.post(running.url(path=f"/api/templates{path}"), json=body, **headers)


async def put(running: RunningSystem, template_id: str, **changes: Any) -> httpx2.Response:
    return await post(running, "", INVOICE | {"id": template_id} | changes, headers=running.bearer())


async def versions(running: RunningSystem, template_id: str) -> list[int]:
    query = "select version from outbound.templates where id = $1 order by version"
    return [row["version"] for row in await running.database.fetch(query, template_id)]


async def test_an_operator_stores_versions_and_everybody_reads_them(running: RunningSystem) -> None:
    first, again = await put(running, "http-invoice"), await put(running, "http-invoice")
    changed = await put(running, "http-invoice", default_locale="de")
    assert [answer.json() for answer in (first, again, changed)] == [
        {"id": "http-invoice", "version": 1, "created": True},
        {"id": "http-invoice", "version": 1, "created": False},
        {"id": "http-invoice", "version": 2, "created": True},
    ]
    assert await versions(running, "http-invoice") == [1, 2]
    row = await running.database.fetchrow("select * from outbound.templates where id = 'http-invoice' and version = 1")
    assert row is not None
    assert (row["created_by"], row["document"]["locales"].keys()) == ("operator", {"en", "de", "de-CH"})

    shown = (await running.http.get(running.url(path="/api/templates/http-invoice"))).json()
    assert (shown["template"]["version"], shown["versions"]) == (2, [2, 1])
    earlier = (await running.http.get(running.url(path="/api/templates/http-invoice"), params={"version": 1})).json()
    assert earlier["template"]["document"]["default_locale"] == "en"
    listed = (await running.http.get(running.url(path="/api/templates"))).json()
    [found] = [one for one in listed["templates"] if one["id"] == "http-invoice"]
    assert (found["version"], found["locales"]) == (2, ["de", "de-CH", "en"])
    assert found["variables"] == ["lines", "name", "paid", "total"]


async def test_a_preview_renders_and_sends_nothing(running: RunningSystem) -> None:
    await put(running, "preview-invoice")
    asked = {"locale": "de-ch", "channel": "email", "variables": ANN | {"name": "<Ann>"}}
    shown = (await post(running, "/preview-invoice/preview", asked)).json()
    html = shown.pop("html")
    assert shown == {
        "id": "preview-invoice",
        "version": 1,
        "locale": "de-CH",
        "channel": "email",
        "subject": "Rechnung für <Ann>",
        "text": "Grüezi <Ann>, total 12.5.",
    }
    assert "Hello &lt;Ann&gt;" in html
    plain = (await post(running, "/preview-invoice/preview", {"variables": ANN})).json()
    assert (plain["text"], plain["html"]) == ("Ann, you owe 12.5.", None)


async def test_what_is_wrong_is_refused_in_words_and_not_stored(running: RunningSystem) -> None:
    async def fields(answer: httpx2.Response, status: int = 422) -> list[str]:
        assert answer.status_code == status, answer.text
        return [field["field"] for field in answer.json()["error"]["fields"]]

    assert await fields(await put(running, "Bad Id")) == ["id"]
    assert await fields(await put(running, "bad", variables={})) == [
        f"locales.{place}"
        for place in (
            *("en.default.text", "en.default.text", "en.default.text"),
            *("en.email.subject", "en.email.text", "en.email.text", "en.email.mjml", "en.email.mjml"),
            *("de.default.text", "de.default.text", "de.default.text"),
            *("de-CH.email.subject", "de-CH.email.text", "de-CH.email.text", "de-CH.email.mjml", "de-CH.email.mjml"),
        )
    ]
    assert await fields(await put(running, "bad", extra=1)) == ["extra"]
    both = {"en": {"default": {"text": "x", "html": "x", "mjml": "<mjml/>"}}}
    assert await fields(await put(running, "bad", variables={}, locales=both)) == ["locales.en.default"]
    two_lines = {"en": {"default": {"text": "x", "subject": "a\nBcc: b"}}}
    assert await fields(await put(running, "bad", variables={}, locales=two_lines)) == ["locales.en.default.subject"]
    assert await versions(running, "bad") == []

    await put(running, "good")
    wrong = {"variables": {"name": 1, "other": "x"}}
    assert await fields(await post(running, "/good/preview", wrong)) == [
        "variables.other",
        "variables.name",
        "variables.total",
    ]
    assert await fields(await post(running, "/good/preview", {"locale": "de_CH", "variables": ANN})) == ["locale"]
    assert await fields(await post(running, "/none/preview", {}), 404) == ["template_id"]
    assert await fields(await post(running, "/good/preview", {"version": 9}), 404) == ["version"]


async def test_only_operators_store_and_connectors_do_not_even_read(running: RunningSystem) -> None:
    refused = await post(running, "", INVOICE | {"id": "mine"}, headers=running.bearer("health"))
    assert refused.status_code == 403
    answer = await call(running, "switchboard", "templates.put", INVOICE | {"id": "mine"}, caller="health")
    assert "may not call templates.put" in answer["error"]["message"]
    token = running.issue_token("template-connector", Role.CONNECTOR)
    answer = await call(running, "switchboard", "templates.list", {}, token=token)
    assert "may not call templates.list" in answer["error"]["message"]
    assert await versions(running, "mine") == []


async def test_butlers_list_show_and_try_by_mcp(running: RunningSystem) -> None:
    stored = await official_call(running, "switchboard", "templates.put", INVOICE | {"id": "mcp-invoice"})
    assert stored == {"id": "mcp-invoice", "version": 1, "created": True}
    listed = await official_call(running, "switchboard", "templates.list", {}, caller="health")
    assert "mcp-invoice" in [one["id"] for one in listed["templates"]]
    shown = await call(running, "switchboard", "templates.show", {"template_id": "mcp-invoice"}, caller="health")
    assert shown["template"]["document"]["variables"]["total"] == {"type": "number", "required": True}
    asked = {"template_id": "mcp-invoice", "channel": "sms", "variables": ANN | {"paid": True}}
    tried = await official_call(running, "switchboard", "templates.preview", asked, caller="health")
    assert (tried["text"], tried["locale"]) == ("Ann, you owe 12.5 no more.", "en")


async def test_a_listing_has_pages(running: RunningSystem) -> None:
    for name in ("page-a", "page-b", "page-c"):
        await put(running, name)
    seen: list[str] = []
    cursor: str | None = "page"
    while cursor is not None:
        address = running.url(path=f"/api/templates?limit=2&cursor={cursor}")
        page = (await running.http.get(address)).json()
        assert len(page["templates"]) <= 2
        seen += [one["id"] for one in page["templates"]]
        cursor = page["next_cursor"]
    assert seen[:3] == ["page-a", "page-b", "page-c"]
    assert len(seen) == len(set(seen))


async def test_templates_at_the_command_line(running: RunningSystem, tmp_path: Path) -> None:
    file = tmp_path / "invoice.json"
    file.write_text(json.dumps(INVOICE | {"id": "cli-invoice"}), encoding="utf-8")
    assert (await lines(running, "templates", "put", str(file)))[0] == "cli-invoice version 1 is stored"
    assert (await lines(running, "templates", "put", str(file)))[0] == "cli-invoice version 1 says the same already"
    assert await versions(running, "cli-invoice") == [1]

    assert any(line.startswith("cli-invoice  version 1  de, de-CH, en") for line in await lines(running, "templates"))
    assert "cli-invoice" in [one["id"] for one in (await document(running, "templates", "list"))["templates"]]
    shown = await lines(running, "templates", "show", "cli-invoice")
    assert "  variable  paid: boolean, optional, default false" in shown
    assert "  content   en (default) email: subject, text, mjml" in shown
    assert (await document(running, "templates", "show", "cli-invoice", "--version", "1"))["template"]["version"] == 1

    preview = ("templates", "preview", "cli-invoice", "--set", "name=A=B", "--set", "total:=7")
    assert await lines(running, *preview) == ["A=B, you owe 7."]
    mail = (*preview, "--locale", "de-CH", "--channel", "email")
    assert await lines(running, *mail) == ["Subject: Rechnung für A=B", "", "Grüezi A=B, total 7."]
    assert "Hello A=B" in "\n".join(await lines(running, *mail, "--html"))
    assert (await document(running, *mail))["locale"] == "de-CH"


async def test_mistakes_at_the_command_line(running: RunningSystem, tmp_path: Path) -> None:
    await put(running, "slips")
    file = tmp_path / "broken.json"
    file.write_text("{", encoding="utf-8")
    for arguments, words in (
        (("templates", "put", str(tmp_path / "none.json")), "cannot be read"),
        (("templates", "put", str(file)), "is not valid JSON"),
        (("templates", "show", "nonesuch"), "no such template"),
        (("templates", "preview", "slips"), "is required by template slips"),
        (("templates", "preview", "slips", "--set", "name"), "must be NAME=TEXT or NAME:=JSON"),
        (("templates", "preview", "slips", "--set", "total:=seven"), "needs JSON"),
        (("templates", "preview", "slips", "--set", "total=7", "--set", "name=Ann"), "must be a number"),
    ):
        assert words in (await cli(running, *arguments, code=2)).stderr, arguments
