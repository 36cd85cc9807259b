"""Names inside SQL text. Values always travel as parameters; names cannot, so they are quoted here."""

from __future__ import annotations

LONGEST_IDENTIFIER = 63  # bytes; PostgreSQL cuts longer names off without a word


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
