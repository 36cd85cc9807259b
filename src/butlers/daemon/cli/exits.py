"""How commands end, and what they say when they fail.

0    done
1    it was tried and failed
2    the command or its input is wrong
3    something must be configured or started first
4    the running system did not answer
130  interrupted
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from butlers.errors import ClassifiedError, ConfigurationError, TargetUnavailable, TimeoutExceeded, ValidationError

OK, FAILED, USAGE, CONFIGURATION, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 130


def run_guarded(app: Callable[..., Any]) -> int:
    """Run the command line; every failure is one plain message and an exit code."""
    try:
        result = app(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return USAGE
    except (click.exceptions.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except ConfigurationError as error:
        _say(str(error))
        return CONFIGURATION
    except ClassifiedError as error:
        _say(error.message)
        for field in getattr(error, "fields", ()):
            _say(f"  {field.field or 'input'}: {field.error}")
        return _code(error)
    return result if isinstance(result, int) else OK


def _code(error: ClassifiedError) -> int:
    if isinstance(error, ValidationError):
        return USAGE
    return UNREACHABLE if isinstance(error, TargetUnavailable | TimeoutExceeded) else FAILED


def _say(message: str) -> None:
    print(f"butlers: {message}", file=sys.stderr)
