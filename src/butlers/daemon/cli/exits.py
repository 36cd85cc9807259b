"""How commands end, and what they say when they fail.

0    done
1    it was tried and failed
2    the command or its input is wrong
3    something must be configured or started first
4    the running system did not answer
130  interrupted
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec

from butlers.errors import ClassifiedError, ConfigurationError, TargetUnavailable, TimeoutExceeded, ValidationError

P = ParamSpec("P")
OK, FAILED, USAGE, CONFIGURATION, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 130


def run_guarded(app: Callable[[], Any]) -> int:
    """Run the command line; every failure is one plain message and an exit code."""
    try:
        app()
    except ConfigurationError as error:
        _say(str(error))
        return CONFIGURATION
    except ClassifiedError as error:
        _say(error.message)
        for field in getattr(error, "fields", ()):
            if field.error not in error.message:  # not what the message says already
                _say(f"  {field.field or 'input'}: {field.error}")
        return _code(error)
    except OSError as error:
        # A file or folder of the operator's that cannot be used; network errors never come here unclassified.
        _say(f"{error.filename or 'the system'}: {error.strerror or error} (check that you may use it)")
        return CONFIGURATION
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


def exiting(command: Callable[P, int]) -> Callable[P, None]:
    """A command that returns its exit code, as typer wants it: ending the process with it."""

    @functools.wraps(command)
    def wrapped(*arguments: P.args, **options: P.kwargs) -> None:
        sys.exit(command(*arguments, **options))

    return wrapped


def _code(error: ClassifiedError) -> int:
    if isinstance(error, ValidationError):
        return USAGE
    return UNREACHABLE if isinstance(error, TargetUnavailable | TimeoutExceeded) else FAILED


def _say(message: str) -> None:
    print(f"butlers: {message}", file=sys.stderr)
