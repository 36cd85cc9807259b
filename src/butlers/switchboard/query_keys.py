"""A query key that nobody reads is a mistake: a filter with a slip of the pen would otherwise show everything."""

from __future__ import annotations

from fastapi.routing import APIRoute
from starlette.requests import Request

from butlers.contracts.envelope import invalid
from butlers.switchboard.answers import Refused


async def refuse_unknown_keys(request: Request) -> None:
    """For every route of an app: 422 for the first key that the route does not know."""
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    known = [parameter.alias for parameter in route.dependant.query_params]
    if unknown := [key for key in request.query_params if key not in known]:
        there = f"there are {', '.join(known)}" if known else "there are none here"
        raise Refused(422, invalid(unknown[0][:64], f"is not a known parameter; {there}"))
