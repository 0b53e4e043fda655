"""How a failing command reports its error: one sentence on stderr and an exit code, without a traceback.

The exit code is 0 for success, 1 for a failure, 2 for a usage error and 130 for an interruption.
"""

from __future__ import annotations

import os
import sys
import traceback

FAILURE = 1
INTERRUPTED = 130
DEBUG_VARIABLE = "OTTLA_DEBUG"


class CommandError(Exception):
    """A command cannot do what it was asked to do. The message is shown to the user."""


def debug_wanted() -> bool:
    """Returns whether tracebacks are printed."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def want_debug() -> None:
    """Turns on tracebacks, in child processes too."""
    os.environ[DEBUG_VARIABLE] = "1"


def report(failure: BaseException) -> int:
    """Prints the failure and returns the exit code."""
    if debug_wanted():
        traceback.print_exception(failure)
    print(f"ottla: {sentence_of(failure)}", file=sys.stderr)
    return FAILURE


def sentence_of(failure: BaseException) -> str:
    """Returns the message for the user. Failures other than our own errors and OSError are bugs in this program."""
    if isinstance(failure, CommandError) or _is_client_error(failure):
        return str(failure)
    if isinstance(failure, OSError):
        where = f": {failure.filename}" if failure.filename else ""
        return f"{failure.strerror or failure}{where}"
    hint = "" if debug_wanted() else "; `ottla --debug ...` prints the traceback"
    return f"internal error, please report it: {type(failure).__name__}: {failure}{hint}"


def _is_client_error(failure: BaseException) -> bool:
    """Checks the type without importing the client, which `ottla up` does not need."""
    errors = sys.modules.get("ottla.client.errors")
    return errors is not None and isinstance(failure, errors.ClientError)
