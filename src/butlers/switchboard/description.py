"""OpenAPI of `/api`: bodies, parameters, answers, errors and who may call, for every operation.

Bodies are read raw and judged by the models behind them (decision 0025), so FastAPI sees little of them. Here its
document is completed from those same models: most operations stand before a tool, and a tool knows what it takes and
answers. A route names its tool (`Behind`), and everything else follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydantic import BaseModel, Field

from butlers.butler.surface import AnyTool
from butlers.contracts.ingest import IngestEnvelope
from butlers.errors import ErrorClass
from butlers.switchboard.ingest_batch import MAX_MESSAGES

Schema = dict[str, Any]
ToolOf = Callable[[str, str], AnyTool | None]  # butler and name; None: not in this process

KEY: Final = "x-tool"
SWITCHBOARD: Final = "switchboard"
_ANYTHING: Final[Schema] = {"type": "object"}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """What stands behind an operation."""

    tool: str  # "" for none
    butler: str = SWITCHBOARD
    body: tuple[str, ...] = ()  # arguments of the tool that come in the body
    argument: str | None = None  # the body is this argument
    whole: bool = False  # the body is all of its arguments
    decides: bool = False  # only a person with an operator's token
    status: int = 200  # of success

    def extra(self) -> dict[str, Any]:
        """For FastAPI, which passes it on to `describe`."""
        return {KEY: asdict(self)}


def describe(document: Schema, *, tool_of: ToolOf, token_required: bool) -> Schema:
    """FastAPI's document, completed."""
    shared = _Shared(document)
    shared.add(ErrorAnswer)
    document.setdefault("components", {})["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "butlers token issue NAME --role operator"}
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            behind = Behind(**operation.pop(KEY, {"tool": ""}))
            _complete(path, operation, behind, shared=shared, tool=tool_of(behind.butler, behind.tool))
            open_to_all = not token_required and not behind.decides
            operation["security"] = [dict(_BEARER), *([{}] if open_to_all else [])]
    return document


def ingest_body(*, batch: bool) -> Schema:
    """The body of `POST /ingest`, or of many of them: there a message that is wrong is no mistake of the others."""
    if not batch:
        return IngestEnvelope.model_json_schema(by_alias=True)
    one = {"description": "an IngestEnvelope; each is judged for itself, and has its own error in the answer"}
    many = {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": one}
    return _object({"messages": many}, ("messages",)) | {"title": "IngestBatch"}


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
        kept: Schema = _renamed({key: value for key, value in schema.items() if key != "$defs"}, names)
        if owner == "Part":
            return kept
        self._schemas[owner] = kept
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


def _complete(path: str, operation: Schema, behind: Behind, *, shared: _Shared, tool: AnyTool | None) -> None:
    arguments = shared.read(shared.of(tool.input_schema())) if tool else {}
    _narrow(operation.get("parameters", []), arguments.get("properties", {}))
    body = _body(behind, arguments, shared)
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        content["schema"] = shared.of(content["schema"])
    elif body is not None:
        required = bool(body.get("required")) or behind.whole or behind.argument is not None
        operation["requestBody"] = {"required": required, "content": {"application/json": {"schema": body}}}
    success = operation["responses"].get(str(behind.status)) or operation["responses"].popitem()[1]
    known = success.get("content", {}).get("application/json", {}).get("schema")
    operation["responses"] = {
        str(behind.status): {
            "description": operation.get("summary", "Done."),
            "content": {"application/json": {"schema": known or _answer(tool, shared)}},
        }
    } | {str(status): _error(status) for status in _statuses(path, operation, behind)}


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


def _body(behind: Behind, arguments: Schema, shared: _Shared) -> Schema | None:
    properties = arguments.get("properties", {})
    if behind.whole:
        return shared.of(arguments) if arguments else dict(_ANYTHING)
    if behind.argument is not None:
        return dict(properties.get(behind.argument, _ANYTHING))
    if not behind.body:
        return None
    required = tuple(name for name in behind.body if name in arguments.get("required", ()))
    return _object({name: properties.get(name, {}) for name in behind.body}, required)


def _object(properties: Schema, required: tuple[str, ...]) -> Schema:
    described: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return described | ({"required": list(required)} if required else {})


def _answer(tool: AnyTool | None, shared: _Shared) -> Schema:
    return shared.of(tool.output_schema()) if tool is not None else dict(_ANYTHING)


def _statuses(path: str, operation: Schema, behind: Behind) -> list[int]:
    """The refusals that an operation knows."""
    elsewhere = behind.butler != SWITCHBOARD
    names = {parameter["name"] for parameter in operation.get("parameters", [])}
    known = {401, 403, 422, 503}
    known |= {414} if names else set()
    known |= {404} if "{" in path or "butler" in names or elsewhere or behind.body else set()
    known |= {429, 504} if elsewhere else set()
    known |= {409} if behind.decides else set()
    known |= {413, 415} if "requestBody" in operation else set()
    known |= {429} if behind.status == 202 else set()
    return sorted(known)


def _error(status: int) -> Schema:
    schema = {"$ref": f"{_PLACE}{ErrorAnswer.__name__}"}
    return {"description": _WORDS[status], "content": {"application/json": {"schema": schema}}}


def json_body(schema: Schema) -> Schema:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


ACCEPTED: Final = Behind(tool="", status=202)
