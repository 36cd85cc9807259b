"""Refusals at every route of the API: query keys that nobody reads, and methods that a path does not have."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request

from butlers.contracts.envelope import invalid
from butlers.operations.answers import Refused
from butlers.serving.guard import NUL


async def refuse_unknown_keys(request: Request) -> None:
    """422 for the first key that the route does not know: a filter with a slip of the pen would show everything."""
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    known = [parameter.alias for parameter in route.dependant.query_params]
    if unknown := [key for key in request.query_params if key not in known]:
        there = f"there are {', '.join(known)}" if known else "there are none here"
        raise Refused(422, invalid(unknown[0][:64], f"is not a known parameter; {there}"))


async def refuse_nul(request: Request) -> None:
    """422 for a part of the path that cannot be stored; queries are judged before (`serving/guard.py`)."""
    for name, value in request.path_params.items():
        if "\x00" in str(value):
            raise Refused(422, invalid(name, NUL))


async def refuse_shadowed_names(request: Request) -> None:
    """405 where a fixed name was taken for an id, because the fixed name does not have this method."""
    route = request.scope.get("route")
    if isinstance(route, APIRoute) and "{" in route.path and (methods := _methods(request, fixed=True)):
        raise HTTPException(405, headers={"Allow": ", ".join(methods)})


def allowed(request: Request) -> dict[str, str]:
    """Which methods a path has, over all of its routes; the first of them alone would say less."""
    methods = _methods(request, fixed=True) or _methods(request, fixed=False)
    return {"Allow": ", ".join(methods)} if methods else {}


def _methods(request: Request, *, fixed: bool) -> list[str]:
    app: FastAPI = request.app
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.path_regex.match(path)]
    chosen = [route for route in routes if ("{" not in route.path) is fixed]
    same = [route for route in chosen if route.path == chosen[0].path] if chosen else []
    return sorted(_each(route.methods for route in same))


def _each(groups: Iterable[set[str] | None]) -> set[str]:
    return {method for group in groups for method in group or ()}
