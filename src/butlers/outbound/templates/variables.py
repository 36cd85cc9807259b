"""What a template declares, what its texts use and what a message brings: the three must agree. Pure.

Every disagreement is found at once, and every refusal names the variable and where it stands, but no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from butlers.errors import FieldError, ValidationError
from butlers.operations.templates import LONGEST_NAME, TemplateDocument, VariableDeclaration, VariableType

MOST_CHARACTERS: Final = 262_144  # of all texts in the variables of one message
MOST_VALUES: Final = 10_000  # in them, counted at every depth
DEEPEST: Final = 8  # lists and objects within each other
MOST_NAMED: Final = 50  # wrong fields that one refusal names
LARGEST_NUMBER: Final = 1e15  # a double holds every whole number up to it

_IS_OF_TYPE: Final[Mapping[VariableType, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, Mapping),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The names that one part of one content takes from outside."""

    locale: str
    channel: str
    part: str  # subject, text, mjml or html
    names: frozenset[str]

    @property
    def field(self) -> str:
        return f"locales.{self.locale}.{self.channel}.{self.part}"


def refuse(fields: Iterable[FieldError]) -> None:
    """Raises `ValidationError` when there is anything to refuse."""
    if found := tuple(islice(fields, MOST_NAMED)):
        raise ValidationError("; ".join(f"{one.field} {one.error}" for one in found), fields=found)


def check_declarations(document: TemplateDocument) -> None:
    """Refuses defaults that are not of their type, and defaults of variables that every message must bring."""
    refuse(_wrong_defaults(document.variables))


def _wrong_defaults(declared: Mapping[str, VariableDeclaration]) -> Iterator[FieldError]:
    for name, declaration in declared.items():
        if declaration.default is None:
            continue
        field = f"variables.{name}.default"
        if declaration.required:
            yield FieldError(field=field, error="goes with required: false")
        yield from _wrong_value(field, declaration.type, declaration.default)
    yield from _too_large({name: one.default for name, one in declared.items()})


def check_uses(document: TemplateDocument, uses: Iterable[Use]) -> None:
    """Refuses a name that is used and not declared, one that is declared and not used, and a translation that leaves
    out a name which the default locale's text for the same channel uses.
    """
    found = tuple(uses)
    refuse((*_undeclared(document, found), *_unused(document, found), *_left_out(document, found)))


def _undeclared(document: TemplateDocument, uses: Iterable[Use]) -> Iterator[FieldError]:
    for use in uses:
        for name in sorted(use.names - document.variables.keys()):
            problem = f"uses {{{{{name}}}}}, which template {document.id} does not declare"
            yield FieldError(field=use.field, error=problem)


def _unused(document: TemplateDocument, uses: Iterable[Use]) -> Iterator[FieldError]:
    used = frozenset[str]().union(*(use.names for use in uses))
    for name in sorted(document.variables.keys() - used):
        yield FieldError(field=f"variables.{name}", error=f"is declared, but no text of template {document.id} uses it")


def _left_out(document: TemplateDocument, uses: Iterable[Use]) -> Iterator[FieldError]:
    by_content: dict[tuple[str, str], frozenset[str]] = {}
    for use in uses:
        content = (use.locale, use.channel)
        by_content[content] = by_content.get(content, frozenset()) | use.names
    for (locale, channel), names in by_content.items():
        original = by_content.get((document.default_locale, channel), frozenset())
        for name in sorted((original - names) & document.variables.keys()):
            problem = f"leaves out {{{{{name}}}}}, which {document.default_locale} has there (template {document.id})"
            yield FieldError(field=f"locales.{locale}.{channel}", error=problem)


def check_variables(document: TemplateDocument, given: Mapping[str, Any]) -> dict[str, Any]:
    """All declared variables with the values of a message or their defaults; null where there is neither.

    Raises `ValidationError` for every one that is missing, not declared, of another type or too large.
    """
    refuse(_too_large(given))
    refuse(_mismatches(document, given))
    return {
        name: value if (value := given.get(name)) is not None else declaration.default
        for name, declaration in document.variables.items()
    }


def _mismatches(document: TemplateDocument, given: Mapping[str, Any]) -> Iterator[FieldError]:
    for name in sorted(given.keys() - document.variables.keys()):
        yield FieldError(field=_field(name), error=f"is not declared by template {document.id}")
    for name, declaration in document.variables.items():
        value = given.get(name)
        if value is not None:
            yield from _wrong_value(f"variables.{name}", declaration.type, value)
        elif declaration.required:
            yield FieldError(field=f"variables.{name}", error=f"is required by template {document.id}")


def _wrong_value(field: str, kind: VariableType, value: Any) -> Iterator[FieldError]:
    if not _IS_OF_TYPE[kind](value):
        yield FieldError(field=field, error=f"must be a {kind}" if kind != "object" else "must be an object")


def check_inline(names: Iterable[str], given: Mapping[str, Any]) -> None:
    """Refuses a body whose names are not those of the variables that come with it."""
    used = frozenset(names)
    refuse(_too_large(given))
    missing = ((name, "is required: the body uses it") for name in sorted(used - given.keys()))
    unused = ((name, "is given, but the body does not use it") for name in sorted(given.keys() - used))
    refuse(FieldError(field=_field(name), error=problem) for name, problem in (*missing, *unused))


def _field(name: str) -> str:
    """The field of a variable whose name may be anything."""
    return f"variables.{name[:LONGEST_NAME]}"


def _too_large(given: Mapping[str, Any]) -> Iterator[FieldError]:
    """Walks without recursion, and no further than the limits."""
    values, characters = 0, 0
    waiting: list[tuple[int, str, Any]] = [(1, _field(name), value) for name, value in given.items()]
    while waiting:
        depth, field, value = waiting.pop()
        values += 1
        inner: list[Any] = []
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, Mapping):
            characters += sum(len(key) for key in value)
            inner = list(value.values())
        elif isinstance(value, list):
            inner = value
        elif isinstance(value, int | float) and not abs(value) <= LARGEST_NUMBER:  # also NaN
            yield FieldError(field=field, error=f"must not hold a number beyond {LARGEST_NUMBER:g}")
            return
        if depth > DEEPEST:
            yield FieldError(field=field, error=f"must not be nested more than {DEEPEST} deep")
            return
        if values + len(inner) > MOST_VALUES or characters > MOST_CHARACTERS:
            problem = f"must hold at most {MOST_VALUES} values and {MOST_CHARACTERS} characters"
            yield FieldError(field="variables", error=problem)
            return
        waiting += [(depth + 1, field, item) for item in inner]
