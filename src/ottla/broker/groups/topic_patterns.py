"""Regular expressions over topic names, by which members of the consumer protocol subscribe (KIP-848).

Kafka evaluates them with RE2/J, which has the syntax of RE2: no look-around, no back references, and a running time
linear in the length of the name, whatever the expression. `google-re2` is RE2 itself, so an expression means the same
here as in Kafka, and no client can block the event loop with one, as `(a+)+b` blocks `re`. The memory of an expression
is bounded too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, cast

import re2

from ottla.protocol.model.errors import ErrorCode, Refused

MEMORY_BYTES_MAX = 1 << 20
REGEX_BYTES_MAX = 4096
COMPILED_KEPT = 1024


class Pattern(Protocol):
    """A compiled regular expression."""

    def fullmatch(self, text: str) -> object | None:
        """Returns a match of the whole text, or None."""
        ...


@lru_cache(maxsize=COMPILED_KEPT)
def compile_pattern(regex: str) -> Pattern | Refused:
    """Compiles a regular expression, or refuses it with INVALID_REGULAR_EXPRESSION."""
    if len(regex.encode("utf-8", "surrogatepass")) > REGEX_BYTES_MAX:
        return _refused(f"it is longer than {REGEX_BYTES_MAX} bytes")
    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        return cast(Pattern, re2.compile(regex, options=options))
    except (re2.error, UnicodeEncodeError) as error:
        return _refused(_sentence(error))


def _sentence(error: Exception) -> str:
    detail = error.args[0] if error.args else ""
    return detail.decode(errors="replace") if isinstance(detail, bytes) else str(error)


def _refused(why: str) -> Refused:
    return Refused(ErrorCode.invalid_regular_expression, f"the regular expression is not valid: {why}")
