"""Templates of messages: an operator stores versions, butlers and operators list, read and try them.

The document is checked here for its shape; what it says is checked where it is stored (`butlers.outbound.templates`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, model_validator

from butlers.contracts.envelope import MAX_IDENTITY, MAX_TEXT, Value
from butlers.errors import ValidationError
from butlers.operations import operation as op

DEFAULT_CHANNEL: Final = "default"
LONGEST_NAME: Final = 64  # characters of a variable's name
LARGEST_FILE: Final = 1_048_576  # bytes, what the HTTP door takes
MOST_VARIABLES, MOST_LOCALES, MOST_CHANNELS = 100, 50, 20

VariableType = Literal["string", "number", "boolean", "list", "object"]
TemplateId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
ChannelName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Source = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT)]


class VariableDeclaration(Value):
    type: VariableType = Field(default="string", description="what its value must be")
    required: bool = Field(default=True, description="whether every message must bring it")
    default: JsonValue = Field(
        default=None, description="its value where a message brings none; goes with required: false"
    )


class TemplateContent(Value):
    """What a message says on one channel in one language."""

    subject: Annotated[str, StringConstraints(min_length=1, max_length=MAX_IDENTITY, pattern=r"^[^\r\n]+$")] | None = (
        Field(default=None, description="the subject line, on channels that have one: Liquid, one line")
    )
    text: Source = Field(description="the text: Liquid")
    mjml: Source | None = Field(
        default=None, description="the layout of a mail: Liquid that makes MJML; instead of html"
    )
    html: Source | None = Field(default=None, description="the same as HTML; instead of mjml")

    @model_validator(mode="after")
    def _has_one_layout(self) -> Self:
        if self.mjml is not None and self.html is not None:
            raise ValueError("has either mjml or html")
        return self

    def parts(self, *, with_html: bool = True) -> dict[str, str]:
        """The sources by part; without HTML for channels that show none."""
        names = ("subject", "text", "mjml", "html") if with_html else ("subject", "text")
        return {name: source for name in names if (source := getattr(self, name)) is not None}


Contents = Annotated[dict[ChannelName, TemplateContent], Field(min_length=1, max_length=MOST_CHANNELS)]


class TemplateDocument(Value):
    id: TemplateId = Field(description="the template's name: small letters, digits and . _ -")
    default_locale: Tag = Field(description="the language of messages whose recipient's language has no text")
    variables: dict[VariableName, VariableDeclaration] = Field(
        default_factory=dict, max_length=MOST_VARIABLES, description="the names that its texts use, and their types"
    )
    locales: dict[Tag, Contents] = Field(
        min_length=1,
        max_length=MOST_LOCALES,
        description="language tag (BCP 47) -> channel -> subject, text, mjml or html; default is for other channels",
    )


class ListArguments(Value):
    cursor: TemplateId | None = Field(
        default=None, description="next_cursor of the page before; absent: the first page"
    )
    limit: int = Field(default=op.PAGE, ge=1, le=op.LONGEST_PAGE, description="at most so many, on one page")


class ShowArguments(Value):
    template_id: TemplateId = Field(description="the template")
    version: int | None = Field(default=None, ge=1, le=2**31 - 1, description="the version; absent: the latest")


class PreviewArguments(ShowArguments):
    locale: Tag | None = Field(default=None, description="a language tag (BCP 47); absent: the template's default")
    channel: ChannelName = Field(default=DEFAULT_CHANNEL, description="the channel; without a text of its own: default")
    variables: dict[str, JsonValue] = Field(default_factory=dict, description="the values, by name")


class TemplateStored(op.Result):
    id: str = Field(description="the template")
    version: int = Field(description="the version that holds this document")
    created: bool = Field(description="false: the latest version says the same, and stays the latest")


class TemplateList(op.Page):
    templates: list[op.Row] = Field(description="id, latest version, locales, variables, since when and by whom")


class TemplateShown(op.Result):
    template: op.Row = Field(description="id, version, document, created_at and created_by")
    versions: list[int] = Field(description="the versions that there are, newest first, at most 100")


class Preview(op.Result):
    id: str = Field(description="the template")
    version: int = Field(description="the version that was rendered")
    locale: str = Field(description="the locale whose text was used")
    channel: str = Field(description="the channel that it was rendered for")
    subject: str | None = Field(description="the subject line, where the template has one")
    text: str = Field(description="the text")
    html: str | None = Field(description="the HTML, where the template has one and the channel shows it")


def _listed(document: op.Document) -> Iterator[str]:
    for row in document["templates"]:
        languages, names = ", ".join(row["locales"]), ", ".join(row["variables"]) or "-"
        since = f"{op.when(row['created_at'])} by {row['created_by']}"
        yield f"{row['id']}  version {row['version']}  {languages}  variables {names}  {since}"


def _shown(document: op.Document) -> Iterator[str]:
    template = document["template"]
    source = template["document"]
    since = f"{op.when(template['created_at'])} by {template['created_by']}"
    yield f"{template['id']} version {template['version']}, {since}"
    yield f"  versions  {', '.join(map(str, document['versions']))}"
    for name, declared in source["variables"].items():
        default = f", default {json.dumps(declared['default'], ensure_ascii=False)}" if "default" in declared else ""
        yield f"  variable  {name}: {declared['type']}, {'required' if declared['required'] else 'optional'}{default}"
    for locale, contents in source["locales"].items():
        mark = " (default)" if locale == source["default_locale"] else ""
        for channel, content in contents.items():
            yield f"  content   {locale}{mark} {channel}: {', '.join(content)}"
    yield op.Hint(f"see the text with: butlers templates preview {template['id']}")


def _stored(document: op.Document) -> Iterator[str]:
    if document["created"]:
        yield f"{document['id']} version {document['version']} is stored"
    else:
        yield f"{document['id']} version {document['version']} says the same already"
    yield op.Hint(f"try it with: butlers templates preview {document['id']}")


def _previewed(document: op.Document) -> Iterator[str]:
    if "text" not in document:
        yield document["html"] or "this content has no HTML on this channel"
        return
    if document["subject"] is not None:
        yield f"Subject: {document['subject']}"
        yield ""
    yield from document["text"].splitlines()


def _only_html(_system: op.System, given: op.Document, document: dict[str, Any]) -> dict[str, Any]:
    return {"html": document["html"]} if given["html"] else document


def _put_file(system: op.System, given: op.Document) -> dict[str, Any]:
    return system.post("/api/templates", _read(given["file"]))


def _read(name: str) -> bytes:
    try:
        if name == "-":
            body = sys.stdin.buffer.read(LARGEST_FILE + 1)
        else:
            with Path(name).open("rb") as file:
                body = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ValidationError.of("FILE", f"cannot be read: {error.strerror}") from None
    if len(body) > LARGEST_FILE:
        raise ValidationError.of("FILE", f"is larger than {LARGEST_FILE} bytes")
    return body


def read_values(texts: Sequence[str]) -> dict[str, Any]:
    """`name=text` is text, `name:=value` is JSON: a number, true, a list, an object."""
    return dict(_value(text) for text in texts)


def _value(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.rstrip(":"):
        raise ValidationError.of("--set", f"must be NAME=TEXT or NAME:=JSON, not {text[:80]!r}")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], json.loads(value)
    except (ValueError, RecursionError):
        raise ValidationError.of("--set", f"{name[:-1]}:= needs JSON behind it") from None


_ID = op.Option("template_id", "The template.", positional=True, metavar="ID")
_VERSION = op.Option("version", "An earlier version; the latest, unless said otherwise.")
_reads = partial(op.Operation, hints=op.READS)

PUT: Final = op.Operation(
    name="templates.put",
    description="Store a template. A changed document becomes the next version; earlier versions stay.",
    arguments=TemplateDocument,
    returns=TemplateStored,
    hints=op.ADDS_ONCE,
    roles=op.OPERATORS,
    routes=(op.post("/templates", "Store a template as its next version"),),
    commands=(
        op.Command(
            "templates put",
            "Store a template from a JSON file as its next version.",
            _stored,
            (op.Option("file", "A JSON document; - reads it from stdin.", positional=True, metavar="FILE"),),
            asks=_put_file,
        ),
    ),
)
LIST: Final = _reads(
    name="templates.list",
    description="Templates of messages in their latest version, by name.",
    arguments=ListArguments,
    returns=TemplateList,
    routes=(op.get("/templates", "Templates of messages, in their latest version"),),
    commands=(
        op.Command(
            "templates list",
            "Templates of messages in their latest version.",
            _listed,
            (op.LIMIT, op.CURSOR),
            none="there are no templates",
            alone=True,
        ),
    ),
)
SHOW: Final = _reads(
    name="templates.show",
    description="One template: its document in one version, and which versions there are.",
    arguments=ShowArguments,
    returns=TemplateShown,
    routes=(op.get("/templates/{template_id}", "One template, in its latest or an earlier version"),),
    commands=(op.Command("templates show", "One template: variables, locales and channels.", _shown, (_ID, _VERSION)),),
)
PREVIEW: Final = _reads(
    name="templates.preview",
    description="Render a template with these values; nothing is sent.",
    arguments=PreviewArguments,
    returns=Preview,
    routes=(op.post("/templates/{template_id}/preview", "Render a template; nothing is sent"),),
    commands=(
        op.Command(
            "templates preview",
            "Render a template with these values; nothing is sent.",
            _previewed,
            (
                _ID,
                op.Option("locale", "A language tag like de-CH; the template's default, unless said otherwise."),
                op.Option("channel", "The channel: email, telegram, ..."),
                op.Option(
                    "variables",
                    "A value: NAME=TEXT, or NAME:=JSON for numbers, true, lists.",
                    "--set",
                    default=None,
                    parse=read_values,
                ),
                _VERSION,
                op.Option("html", "Print the HTML and nothing else.", "--html", default=False),
            ),
            completed=_only_html,
        ),
    ),
)

OPERATIONS: Final = (LIST, SHOW, PUT, PREVIEW)
