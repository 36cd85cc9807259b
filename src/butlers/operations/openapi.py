"""OpenAPI of `/api`: bodies, parameters, answers, errors and who may call, for every route.

Bodies are read raw and judged by the models behind them (decision 0025), so FastAPI sees little of them. Here its
document is completed from the declarations of the operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, Field

from butlers.errors import ErrorClass
from butlers.operations.http import Served
from butlers.operations.operation import SWITCHBOARD, Operation, Route

Schema = dict[str, Any]
_BEARER: Final[Mapping[str, list[str]]] = {"bearer": []}
_PLACE: Final = "#/components/schemas/"

_WORDS: Final = {
    401: "The token is not known, or one is required.",
    403: "This caller may not do that, or the request comes from a page of another site.",
    404: "There is no such thing.",
    409: "Not possible as things are.",
    413: "The body is too large.",
    414: "The address is too long; see http_target_bytes.",
    415: "The body must be application/json.",
    422: "Something is wrong with what was given; `fields` names all of it.",
    429: "Too much at present; `Retry-After` says when to come again.",
    503: "The database or the butler behind this address is away; try again.",
    504: "The butler behind this address did not answer in time.",
}


class FieldProblem(BaseModel):
    field: str = Field(description="dotted path, empty for the input as a whole")
    error: str = Field(description="what is wrong, without the value")


class Problem(BaseModel):
    error_class: ErrorClass = Field(alias="class")
    message: str
    retryable: bool = Field(description="whether the same call may succeed later")
    retry_after_seconds: float | None = Field(default=None, description="when to come again")
    fields: list[FieldProblem] = Field(default_factory=list)


class ErrorAnswer(BaseModel):
    """Every refusal of this API."""

    error: Problem


def describe(document: Schema, served: Served, *, token_required: bool) -> Schema:
    """FastAPI's document, completed."""
    shared = _Shared(document)
    shared.add(ErrorAnswer)
    document.setdefault("components", {})["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "butlers token issue NAME --role operator"}
    }
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            operation, route = served[path, method]
            _complete(described, operation, route, shared=shared)
            needs_token = token_required or operation.decides(route)
            described["security"] = [dict(_BEARER), *([] if needs_token else [{}])]
    return document


class _Shared:
    """The schemas that operations refer to."""

    def __init__(self, document: Schema) -> None:
        self._schemas: Schema = document.setdefault("components", {}).setdefault("schemas", {})

    def add(self, model: type[BaseModel]) -> Schema:
        return self.of(model.model_json_schema(by_alias=True))

    def of(self, schema: Schema) -> Schema:
        """The schema without parts of its own; they are kept under a name that nobody else has."""
        owner, parts = schema.get("title", "Part"), schema.get("$defs", {})
        names = {name: f"{owner}.{name}" for name in parts}
        for name, full in names.items():
            self._schemas[full] = _renamed(parts[name], names)
        stripped: Schema = _renamed({key: value for key, value in schema.items() if key != "$defs"}, names)
        if owner == "Part":
            return stripped
        self._schemas[owner] = stripped
        return {"$ref": _PLACE + owner}

    def read(self, schema: Schema) -> Schema:
        """A schema by its reference."""
        found: Schema = self._schemas.get(schema.get("$ref", "").removeprefix(_PLACE), schema)
        return found


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_renamed(item, names) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _renamed(value, names) for key, value in schema.items() if key != "discriminator"}
    if isinstance(reference := schema.get("$ref"), str):
        name = reference.rpartition("/")[2]
        changed["$ref"] = _PLACE + names.get(name, name)
    return changed


def _complete(described: Schema, operation: Operation, route: Route, *, shared: _Shared) -> None:
    is_whole = route.body_is == "" and route.body_schema is not None  # the body is all arguments, and described apart
    arguments = shared.read(shared.of(dict(route.body_schema or {}) if is_whole else operation.input_schema()))
    _narrow(described.get("parameters", []), arguments.get("properties", {}))
    body = _body(operation, route, arguments, shared)
    if body is not None:
        required = bool(body.get("required")) or route.body_is is not None
        described["requestBody"] = {"required": required, "content": {"application/json": {"schema": body}}}
    answer = {"application/json": {"schema": shared.of(operation.output_schema())}}
    errors = {str(status): _error(status) for status in _statuses(described, operation, route)}
    described["responses"] = {str(route.status): {"description": route.summary, "content": answer}} | errors


def _narrow(parameters: list[Schema], properties: Schema) -> None:
    """A parameter is what the tool's argument is, in an address: never null, and left out instead."""
    for parameter in parameters:
        known = properties.get(parameter["name"])
        if known is not None and parameter["schema"].get("type") not in ("integer", "boolean"):
            parameter["schema"] = known
            if "description" in known:
                parameter["description"] = known["description"]
        parameter["schema"] = _without_null(parameter["schema"])


def _without_null(schema: Schema) -> Schema:
    choices = [choice for choice in schema.get("anyOf", []) if choice.get("type") != "null"]
    if "anyOf" not in schema:
        return schema
    rest = {key: value for key, value in schema.items() if key != "anyOf" and (key != "default" or value is not None)}
    return rest | (choices[0] if len(choices) == 1 else {"anyOf": choices})


def _body(operation: Operation, route: Route, arguments: Schema, shared: _Shared) -> Schema | None:
    properties, names = arguments.get("properties", {}), operation.in_body(route)
    if route.body_is == "":
        return shared.of(arguments)
    if route.body_is is not None:
        return shared.of(dict(route.body_schema)) if route.body_schema else dict(properties[route.body_is])
    if not names:
        return None
    required = [name for name in names if name in arguments.get("required", ())]
    described: Schema = {
        "type": "object",
        "properties": {name: properties.get(name, {}) for name in names},
        "additionalProperties": False,
    }
    return described | ({"required": required} if required else {})


def _statuses(described: Schema, operation: Operation, route: Route) -> list[int]:
    """The refusals that a route knows."""
    elsewhere = operation.butler != SWITCHBOARD
    names = {parameter["name"] for parameter in described.get("parameters", [])}
    known = {401, 403, 422, 503}
    known |= {414} if names else set()
    refers = "{" in route.path or bool(names & {"butler", "subject"})  # to what may not be there
    known |= {404} if refers or elsewhere or operation.in_body(route) else set()
    known |= {429, 504} if elsewhere else set()
    known |= {409} if operation.decides(route) else set()
    known |= {413, 415} if "requestBody" in described else set()
    known |= {429} if route.status == 202 else set()
    return sorted(known)


def _error(status: int) -> Schema:
    schema = {"$ref": f"{_PLACE}{ErrorAnswer.__name__}"}
    return {"description": _WORDS[status], "content": {"application/json": {"schema": schema}}}
