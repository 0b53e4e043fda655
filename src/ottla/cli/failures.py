"""What a person sees when a command fails: one sentence on stderr and an exit code, no traceback.

0 is success, 1 a failure, 2 a wrong call, 130 an interruption.
"""

from __future__ import annotations

import os
import sys
import traceback

FAILURE = 1
INTERRUPTED = 130
DEBUG_VARIABLE = "OTTLA_DEBUG"


class FailedError(Exception):
    """A command cannot do what it was asked. The message is the sentence that the user sees."""


def debug_wanted() -> bool:
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def want_debug() -> None:
    os.environ[DEBUG_VARIABLE] = "1"


def report(failure: BaseException) -> int:
    """Prints the failure; the exit code."""
    if debug_wanted():
        traceback.print_exception(failure)
    print(f"ottla: {sentence_of(failure)}", file=sys.stderr)
    return FAILURE


def sentence_of(failure: BaseException) -> str:
    """Failures with a message of ours speak for themselves; anything else is a fault of this program."""
    if isinstance(failure, FailedError) or _is_client_error(failure):
        return str(failure)
    if isinstance(failure, OSError):
        where = f": {failure.filename}" if failure.filename else ""
        return f"{failure.strerror or failure}{where}"
    hint = "" if debug_wanted() else "; `ottla --debug ...` shows where"
    return f"this is a fault of ottla itself: {type(failure).__name__}: {failure}{hint}"


def _is_client_error(failure: BaseException) -> bool:
    """Without importing the client, which `ottla up` does not need."""
    errors = sys.modules.get("ottla.client.errors")
    return errors is not None and isinstance(failure, errors.ClientError)
