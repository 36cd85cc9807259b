"""SQL in files of its own, each query with a name and a sentence that says what it is for.

    -- name: claim_due
    -- Takes due deliveries for one worker; skips rows that another worker is claiming.
    update {schema}.deliveries set ...

`{schema}` stands for the quoted name of the schema. A file with a mistake does not load.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Self

from butlers.errors import ConfigurationError

LONGEST_IDENTIFIER = 63  # bytes; PostgreSQL cuts longer names off without a word
_HEADER = re.compile(r"^-- name:[ \t]*(?P<name>\S*)[ \t]*$", re.MULTILINE)
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def quote_identifier(name: str) -> str:
    """A name as SQL text, whatever characters it has."""
    if not name or "\0" in name:
        raise ValueError("an SQL identifier is neither empty nor holds a NUL character")
    if len(name.encode()) > LONGEST_IDENTIFIER:
        raise ValueError(f"the SQL identifier {name!r} is longer than {LONGEST_IDENTIFIER} bytes")
    return '"' + name.replace('"', '""') + '"'


def fill_schema(sql: str, schema: str) -> str:
    """SQL text with its `{schema}` placeholders replaced by the quoted schema name."""
    return sql.replace("{schema}", quote_identifier(schema))


class Queries(Mapping[str, str]):
    """The SQL texts of one file, by name: `queries.claim_due` or `queries["claim_due"]`."""

    def __init__(self, texts: Mapping[str, str], *, source: str) -> None:
        self._texts = dict(texts)
        self._source = source
        self.__dict__ |= self._texts  # found without `__getattr__`, which is for the message of a wrong name

    @classmethod
    def load(cls, owner: str, *, schema: str | None = None) -> Self:
        """Read the file of a package (`queries.sql` in its folder) or of a module (`<module>.sql` beside it)."""
        return cls(_read(owner, schema), source=owner)

    @classmethod
    def parse(cls, text: str, *, source: str, schema: str | None = None) -> Self:
        return cls(_texts(text, source=source, schema=schema), source=source)

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(f"{self._source} has no query {name!r}") from None

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


@functools.cache
def _read(owner: str, schema: str | None) -> Mapping[str, str]:
    """Once in a process: several of its parts use the same file."""
    spec = find_spec(owner)
    if spec is None or spec.origin is None:
        raise _mistake(owner, "(file)", "there is no such module", "name a module or a package")
    module = Path(spec.origin)
    path = module.with_name("queries.sql") if module.name == "__init__.py" else module.with_suffix(".sql")
    return _texts(path.read_text(encoding="utf-8"), source=f"{owner} ({path.name})", schema=schema)


def _texts(text: str, *, source: str, schema: str | None) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, block in _blocks(text, source=source):
        if name in texts:
            raise _mistake(source, name, "this name is used twice", "give one of the two another name")
        texts[name] = _with_schema(_body(name, block, source=source), name, schema=schema, source=source)
    return texts


def _blocks(text: str, *, source: str) -> Iterator[tuple[str, str]]:
    headers = list(_HEADER.finditer(text))
    preamble = text[: headers[0].start()] if headers else text
    if _without_comments(preamble):
        raise _mistake(source, "(top)", "there is SQL before the first name", "start it with `-- name: ...`")
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        name = header["name"]
        if not _NAME.fullmatch(name):
            raise _mistake(source, name, "this is not a name", "use small letters, digits and underscores")
        yield name, text[header.end() : following.start() if following else len(text)]


def _body(name: str, block: str, *, source: str) -> str:
    lines = block.strip().splitlines()
    sentence = [line.removeprefix("--").strip() for line in takewhile(lambda line: line.startswith("--"), lines)]
    if not any(sentence):
        raise _mistake(source, name, "the sentence is missing", "say below the name what the query is for")
    body = "\n".join(lines[len(sentence) :]).strip()
    if not _without_comments(body):
        raise _mistake(source, name, "there is no SQL", "write the query, or remove its name")
    # The name travels with the query, so that the server's logs and statistics show it.
    return f"/* {name} */ {body}"


def _with_schema(body: str, name: str, *, schema: str | None, source: str) -> str:
    if schema is not None:
        return fill_schema(body, schema)
    if "{schema}" in body:
        raise _mistake(source, name, "the query needs a schema", "load the file with schema=...")
    return body


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--")).strip()


def _mistake(source: str, name: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(problem, source=source, key=name, remedy=remedy)
