"""The parameters of a call, wherever they were put: query, form, multipart or JSON body.

In a query or a form every value is text, and structures are JSON within that text; a JSON body may hold either.
Numbers that cannot be read count as absent, as in the real service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from butlers.channels.telegram.simulator.model import bad_request
from butlers.simulators.wire import decoded

_TRUE = frozenset({"true", "yes", "1"})


class Params:
    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        return value if value is None or isinstance(value, str) else json.dumps(value)

    def integer(self, name: str) -> int | None:
        return as_integer(self._values.get(name))

    def within(self, name: str, default: int, low: int, high: int) -> int:
        """A number forced between two bounds."""
        value = self.integer(name)
        return min(high, max(low, default if value is None else value))

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        return str(value).lower() in _TRUE

    def structure(self, name: str) -> Any:
        value = self._values.get(name)
        if not isinstance(value, str):
            return value
        try:
            return decoded(value)
        except ValueError:
            raise bad_request(f"can't parse {name} JSON object") from None

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.structure(name)
        if value is not None and not isinstance(value, dict):
            raise bad_request(f"can't parse {name} JSON object")
        return value or {}


def as_integer(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None


async def read_params(request: Request) -> Params:
    return Params(dict(request.query_params) | await _body(request))


async def _body(request: Request) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return _json_object(await request.body())
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        async with request.form() as form:
            return {name: value for name, value in form.items() if isinstance(value, str)}
    return {}


def _json_object(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        value = decoded(body)
    except UnicodeError:
        raise bad_request("strings must be encoded in UTF-8") from None
    except ValueError:
        raise bad_request("can't parse JSON object") from None
    if not isinstance(value, dict):
        raise bad_request("can't parse JSON object")
    return value
