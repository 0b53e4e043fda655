"""kio's error codes, imported without what kio does for hypothesis: where that is installed, it would import it and
register its own types, a fifth of a second of every process that starts."""

from __future__ import annotations

import sys

_NAME = "hypothesis"

if _NAME in sys.modules:
    from kio.schema.errors import ErrorCode
else:
    sys.modules[_NAME] = None  # type: ignore[assignment] # an import of it fails, as where it is not installed
    try:
        from kio.schema.errors import ErrorCode
    finally:
        del sys.modules[_NAME]

__all__ = ["ErrorCode"]
