"""Operators' actions and records over HTTP. Whoever may see the system may read what is on record; only a person with
an operator's token may act. An action that is not possible now is 409, a thing that is not there 404.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from fastapi import FastAPI, Query
from pydantic import AwareDatetime
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.identity import Caller
from butlers.butler.surface import BUTLERS
from butlers.contracts.envelope import Value, invalid
from butlers.errors import ClassifiedError, ErrorClass
from butlers.switchboard.answers import Refused, fields, json_answer, may_decide, status_of
from butlers.switchboard.operators.decisions import Action
from butlers.switchboard.operators.overrides import Rejected
from butlers.switchboard.operators.paging import LONGEST_PAGE
from butlers.switchboard.operators.tools import (
    ActionArguments,
    ForceCompleteArguments,
    OperatorTools,
    ReplayArguments,
    RerouteArguments,
)
from butlers.switchboard.proxy import BodyOf, CallerOf, add_routes
