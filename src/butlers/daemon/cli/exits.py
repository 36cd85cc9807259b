"""What commands print, how they end, and what they say when they fail.

0    done
1    it was tried and failed
2    the command or its input is wrong
3    something must be configured or started first
4    the running system or its database did not answer
130  interrupted

A failure is told in plain words on standard error. With `--json` it is one JSON document on standard output, as every
other answer is: `{"error": {"class", "message", ...}}`. Whoever reads the output always has something to read, and the
exit code is the same.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ParamSpec

# typer gives names to the kinds of it only.
from typer._click.exceptions import ClickException

from butlers.errors import (
    ClassifiedError,
    ConfigurationError,
    FieldError,
    ServiceDown,
    ValidationError,
)

P = ParamSpec("P")
Document = dict[str, Any]
OK, FAILED, USAGE, CONFIGURATION, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 130
CONFIGURATION_ERROR = "configuration_error"  # of this machine, so not in the taxonomy of the wire


def say(document: Document, as_json: bool, lines: Callable[[Document], Iterable[str]]) -> None:
    """Print an answer for machines or for people."""
    if as_json:
        print(json.dumps(document))
    else:
        for line in lines(document):
            print(plain(line))


def plain(line: str) -> str:
    """What others wrote, so that it cannot pretend to be something else on a terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Before anything is parsed: a command line that cannot be parsed is answered, too."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def run_guarded(app: Callable[[], Any], *, as_json: bool = False) -> int:
    """Run the command line; every failure is one message and an exit code."""
    try:
        ended = app()
    except ConfigurationError as error:
        code = UNREACHABLE if isinstance(error, ServiceDown) else CONFIGURATION
        return _failed(code, [str(error)], _configuration(error), as_json)
    except ClassifiedError as error:
        return _failed(error.exit_code, _lines(error), error.describe(), as_json)
    except ClickException as error:
        described = ValidationError(error.format_message(), fields=_option(error)).describe()
        return _failed(error.exit_code, [error.format_message()], described, as_json)
    except OSError as error:
        # A file or folder of the operator's that cannot be used; network errors never come here unclassified.
        message = f"{error.filename or 'the system'}: {error.strerror or error} (check that you may use it)"
        return _failed(CONFIGURATION, [message], {"class": CONFIGURATION_ERROR, "message": message}, as_json)
    except KeyboardInterrupt:
        return INTERRUPTED
    return ended if isinstance(ended, int) else OK


def exiting(command: Callable[P, int]) -> Callable[P, None]:
    """A command that returns its exit code, as typer wants it: ending the process with it."""

    @functools.wraps(command)
    def wrapped(*arguments: P.args, **options: P.kwargs) -> None:
        sys.exit(command(*arguments, **options))

    return wrapped


def _failed(code: int, lines: Iterable[str], described: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": {"retryable": False} | described}))
    else:
        for line in lines:
            print(f"butlers: {line}", file=sys.stderr)
    return code


def _lines(error: ClassifiedError) -> Iterator[str]:
    yield error.message
    for field in getattr(error, "fields", ()):
        if field.error not in error.message:  # not what the message says already
            yield f"  {field.field or 'input'}: {field.error}"


def _option(error: ClickException) -> tuple[FieldError, ...]:
    """The option or argument that is wrong."""
    parameter = getattr(error, "param", None)
    name = getattr(error, "option_name", None) or (max(parameter.opts, key=len) if parameter is not None else None)
    return (FieldError(field=str(name), error=error.message or "is required"),) if name else ()


def _configuration(error: ConfigurationError) -> dict[str, Any]:
    names = ("problem", "source", "key", "remedy")
    return {"class": CONFIGURATION_ERROR, "message": str(error)} | {name: getattr(error, name) for name in names}
