"""Regular expressions over the names of topics, as members of the consumer protocol subscribe by them (KIP-848).

Kafka evaluates them with RE2/J, whose syntax is that of RE2: no look-around, no back references, and time that grows
with the length of the name, whatever the expression. `google-re2` is the library itself, so an expression means the
same here as there, and none that a client makes up can hold the event loop up, as `re` can be held up by `(a+)+b`.
The memory of one is bounded too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, cast

import re2

from ottla.model.errors import ErrorCode, Refused

MEMORY_BYTES_MAX = 1 << 20
REGEX_BYTES_MAX = 4096
COMPILED_KEPT = 1024


class Pattern(Protocol):
    def fullmatch(self, text: str) -> object | None: ...


@lru_cache(maxsize=COMPILED_KEPT)
def compile_pattern(regex: str) -> Pattern | Refused:
    if len(regex.encode("utf-8", "surrogatepass")) > REGEX_BYTES_MAX:
        return _refused(f"it has more than {REGEX_BYTES_MAX} bytes")
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
