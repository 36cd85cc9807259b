"""Templates that tests begin with."""

from __future__ import annotations

from typing import Any

from butlers.operations.templates import TemplateDocument

MJML = (
    "<mjml><mj-body><mj-section><mj-column>"
    "<mj-text>Hello {{ name }}</mj-text>"
    "{% for line in lines %}<mj-text>{{ line.title }}: {{ line.price }}</mj-text>{% endfor %}"
    "</mj-column></mj-section></mj-body></mjml>"
)
INVOICE: dict[str, Any] = {
    "id": "invoice",
    "default_locale": "en",
    "variables": {
        "name": {"type": "string"},
        "total": {"type": "number"},
        "paid": {"type": "boolean", "required": False, "default": False},
        "lines": {"type": "list", "required": False, "default": []},
    },
    "locales": {
        "en": {
            "default": {"text": "{{ name }}, you owe {{ total }}{% if paid %} no more{% endif %}."},
            "email": {
                "subject": "Invoice for {{ name }}",
                "text": "Dear {{ name }}, total {{ total }}.",
                "mjml": MJML,
            },
        },
        "de": {
            "default": {"text": "{{ name }}, du schuldest {{ total }}{% if paid %} nicht mehr{% endif %}."},
        },
        "de-CH": {
            "email": {
                "subject": "Rechnung für {{ name }}",
                "text": "Grüezi {{ name }}, total {{ total }}.",
                "mjml": MJML,
            },
        },
    },
}
ANN: dict[str, Any] = {"name": "Ann", "total": 12.5}


def invoice(**changes: Any) -> TemplateDocument:
    return TemplateDocument.model_validate(INVOICE | changes)


def one_text(text: str, *, locales: dict[str, Any] | None = None, **variables: str) -> TemplateDocument:
    """A template of one text, with these variables and their types."""
    declared = {name: {"type": kind} for name, kind in variables.items()}
    contents = {"en": {"default": {"text": text}}} | (locales or {})
    return TemplateDocument.model_validate(
        {"id": "note", "default_locale": "en", "variables": declared, "locales": contents}
    )
